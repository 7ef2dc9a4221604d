/* SPDX-License-Identifier: Apache-2.0 */
#include "keyspace.h"

#include <jansson.h>
#include <openssl/evp.h>
#include <stdlib.h>

/* ---------------------------------------------------------------------------------------------- */
/* Digest                                                                                         */

struct digester {
  struct digest d;
  EVP_MD_CTX *total, *pg;
};

static EVP_MD_CTX *sha256_new(void) {
  EVP_MD_CTX *c = EVP_MD_CTX_new();
  if (!c || EVP_DigestInit_ex(c, EVP_sha256(), NULL) != 1) {
    fprintf(stderr, "pglog_bench: libcrypto has no SHA-256\n");
    exit(1);
  }
  return c;
}

static void sha256_hex(EVP_MD_CTX *c, char *hex) {
  uint8_t md[EVP_MAX_MD_SIZE];
  unsigned n = 0;
  EVP_DigestFinal_ex(c, md, &n);
  for (unsigned i = 0; i < n && i < 32; i++)
    snprintf(hex + 2 * i, 3, "%02x", md[i]);
  EVP_MD_CTX_free(c);
}

static void part_add(struct digest_part *p, EVP_MD_CTX *c, struct bytes key, struct bytes value) {
  uint8_t head[6] = {(uint8_t)key.size,           (uint8_t)(key.size >> 8),
                     (uint8_t)value.size,         (uint8_t)(value.size >> 8),
                     (uint8_t)(value.size >> 16), (uint8_t)(value.size >> 24)};
  EVP_DigestUpdate(c, head, sizeof(head));
  EVP_DigestUpdate(c, key.data, key.size);
  EVP_DigestUpdate(c, value.data, value.size);
  p->keys++;
  p->bytes += key.size + value.size;
}

struct digester *digester_new(void) {
  struct digester *g = must_realloc(NULL, sizeof(*g));
  memset(g, 0, sizeof(*g));
  g->total = sha256_new();
  return g;
}

static void pg_end(struct digester *g) {
  if (g->pg)
    sha256_hex(g->pg, g->d.pgs[g->d.n_pgs - 1].sha256);
  g->pg = NULL;
}

void digester_add(struct digester *g, struct bytes key, struct bytes value) {
  uint8_t id[TRACE_PG_ID] = {0};
  memcpy(id, key.data, key.size < sizeof(id) ? key.size : sizeof(id));
  if (!g->pg || memcmp(g->d.pgs[g->d.n_pgs - 1].id, id, sizeof(id)) != 0) {
    pg_end(g);
    g->d.pgs = must_realloc(g->d.pgs, (g->d.n_pgs + 1) * sizeof(*g->d.pgs));
    memset(&g->d.pgs[g->d.n_pgs], 0, sizeof(*g->d.pgs));
    memcpy(g->d.pgs[g->d.n_pgs++].id, id, sizeof(id));
    g->pg = sha256_new();
  }
  part_add(&g->d.total, g->total, key, value);
  part_add(&g->d.pgs[g->d.n_pgs - 1], g->pg, key, value);
}

void digester_end(struct digester *g, struct digest *d) {
  pg_end(g);
  sha256_hex(g->total, g->d.total.sha256);
  *d = g->d;
  free(g);
}

void digest_free(struct digest *d) {
  free(d->pgs);
  memset(d, 0, sizeof(*d));
}

static bool part_equal(const struct digest_part *a, const struct digest_part *b) {
  return a->keys == b->keys && a->bytes == b->bytes && strcmp(a->sha256, b->sha256) == 0;
}

static int part_differs(const char *what, const struct digest_part *want,
                        const struct digest_part *have, struct fail *f) {
  return fail_set(f, "%s has %llu keys, %llu bytes, sha256 %s; expected %llu, %llu, %s", what,
                  (unsigned long long)have->keys, (unsigned long long)have->bytes, have->sha256,
                  (unsigned long long)want->keys, (unsigned long long)want->bytes, want->sha256);
}

int digest_compare(const struct digest *want, const struct digest *have, struct fail *f) {
  static const struct digest_part none = {.sha256 = "(none)"};
  size_t i = 0, j = 0;
  while (i < want->n_pgs || j < have->n_pgs) {
    const struct digest_part *w = i < want->n_pgs ? &want->pgs[i] : NULL;
    const struct digest_part *h = j < have->n_pgs ? &have->pgs[j] : NULL;
    int c = !w ? 1 : !h ? -1 : memcmp(w->id, h->id, TRACE_PG_ID);
    i += c <= 0;
    j += c >= 0;
    if (c == 0 && part_equal(w, h))
      continue;
    char what[32] = "PG ";
    for (int b = 0; b < TRACE_PG_ID; b++)
      snprintf(what + 3 + 2 * b, 3, "%02x", (c <= 0 ? w : h)->id[b]);
    return part_differs(what, c <= 0 ? w : &none, c >= 0 ? h : &none, f);
  }
  if (!part_equal(&want->total, &have->total))
    return part_differs("the key space", &want->total, &have->total, f);
  return 0;
}

/* ---------------------------------------------------------------------------------------------- */
/* Digest from JSON                                                                               */

static int part_load(struct digest_part *p, json_t *o) {
  json_t *keys = json_object_get(o, "keys"), *bytes = json_object_get(o, "bytes");
  const char *sha = json_string_value(json_object_get(o, "sha256"));
  if (!json_is_integer(keys) || !json_is_integer(bytes) || !sha || strlen(sha) != 64)
    return -1;
  p->keys = (uint64_t)json_integer_value(keys);
  p->bytes = (uint64_t)json_integer_value(bytes);
  memcpy(p->sha256, sha, 65);
  return 0;
}

static int id_load(uint8_t *id, const char *hex) {
  if (strlen(hex) != 2 * TRACE_PG_ID || strspn(hex, "0123456789abcdef") != 2 * TRACE_PG_ID)
    return -1;
  for (int i = 0; i < TRACE_PG_ID; i++) {
    unsigned byte;
    sscanf(hex + 2 * i, "%2x", &byte);
    id[i] = (uint8_t)byte;
  }
  return 0;
}

static int part_cmp(const void *a, const void *b) {
  return memcmp(((const struct digest_part *)a)->id, ((const struct digest_part *)b)->id,
                TRACE_PG_ID);
}

int digest_load(struct digest *d, const char *path, struct fail *f) {
  memset(d, 0, sizeof(*d));
  json_error_t e;
  json_t *root = json_load_file(path, 0, &e), *value;
  if (!root)
    return fail_set(f, "%s: line %d: %s", path, e.line, e.text);
  json_t *pgs = json_object_get(root, "pgs");
  int rc = part_load(&d->total, root);
  if (rc != 0 || !json_is_object(pgs))
    rc = fail_set(f, "%s: no \"keys\", \"bytes\", \"sha256\" and \"pgs\" in it", path);
  const char *key;
  if (rc == 0)
    d->pgs = must_realloc(NULL, json_object_size(pgs) * sizeof(*d->pgs));
  json_object_foreach(pgs, key, value) {
    struct digest_part *p = rc == 0 ? &d->pgs[d->n_pgs++] : NULL;
    if (p && (id_load(p->id, key) != 0 || part_load(p, value) != 0))
      rc = fail_set(f, "%s: PG \"%s\" is malformed", path, key);
  }
  json_decref(root);
  if (rc != 0)
    digest_free(d);
  else
    qsort(d->pgs, d->n_pgs, sizeof(*d->pgs), part_cmp);
  return rc;
}

/* ---------------------------------------------------------------------------------------------- */
/* Model: a hash table with open addressing; deletion moves later entries of the run back. */

struct table {
  struct model_entry *slots; /* key.data NULL: free */
  size_t mask, used;
};

static uint64_t hash(struct bytes key) {
  uint64_t h = 0xcbf29ce484222325u;
  for (size_t i = 0; i < key.size; i++)
    h = (h ^ key.data[i]) * 0x100000001b3u;
  return h ^ h >> 29;
}

static size_t table_find(const struct table *t, struct bytes key) {
  size_t i = hash(key) & t->mask;
  while (t->slots[i].key.data && bytes_cmp(t->slots[i].key, key) != 0)
    i = (i + 1) & t->mask;
  return i;
}

static void table_resize(struct table *t, size_t slots) {
  struct table bigger = {.mask = slots - 1, .used = t->used};
  bigger.slots = must_realloc(NULL, slots * sizeof(*bigger.slots));
  memset(bigger.slots, 0, slots * sizeof(*bigger.slots));
  for (size_t i = 0; t->slots && i <= t->mask; i++)
    if (t->slots[i].key.data)
      bigger.slots[table_find(&bigger, t->slots[i].key)] = t->slots[i];
  free(t->slots);
  *t = bigger;
}

static void table_put(struct table *t, struct bytes key, struct bytes value) {
  size_t i = table_find(t, key);
  if (!t->slots[i].key.data) {
    if (t->used * 2 > t->mask) {
      table_resize(t, (t->mask + 1) * 2);
      i = table_find(t, key);
    }
    uint8_t *copy = must_realloc(NULL, key.size);
    memcpy(copy, key.data, key.size);
    t->slots[i].key = bytes_make(copy, key.size);
    t->used++;
  }
  t->slots[i].value = value;
}

static void table_delete(struct table *t, struct bytes key) {
  size_t hole = table_find(t, key);
  if (!t->slots[hole].key.data)
    return;
  free((void *)t->slots[hole].key.data);
  t->used--;
  for (size_t i = hole;;) {
    i = (i + 1) & t->mask;
    if (!t->slots[i].key.data)
      break;
    /* An entry may move into the hole unless its home lies behind the hole in the run. */
    size_t home = hash(t->slots[i].key) & t->mask;
    if (((i - home) & t->mask) < ((i - hole) & t->mask))
      continue;
    t->slots[hole] = t->slots[i];
    hole = i;
  }
  memset(&t->slots[hole], 0, sizeof(t->slots[hole]));
}

static int entry_cmp(const void *a, const void *b) {
  return bytes_cmp(((const struct model_entry *)a)->key, ((const struct model_entry *)b)->key);
}

static void apply_pass(struct table *t, const struct trace *trace) {
  for (size_t i = 0; i < trace->n_records; i++) {
    struct trace_op op;
    const uint8_t *end, *p = trace_record(trace, i, &end);
    while (p < end) {
      p = trace_op_next(p, end, &op);
      if (op.cf != TRACE_CF_P)
        continue;
      if (op.type == TRACE_PUT)
        table_put(t, op.key, op.value);
      else
        table_delete(t, op.key);
    }
  }
}

void model_build(struct model *m, const struct keyspace_file *before, struct trace *t,
                 uint64_t passes) {
  struct table table = {0};
  table_resize(&table, 1 << 16);
  struct bytes key, value;
  for (size_t pos = 0; before && keyspace_file_next(before, &pos, &key, &value);)
    table_put(&table, key, value);
  for (uint64_t pass = 0; pass < passes; pass++) {
    trace_shift(t, pass);
    apply_pass(&table, t);
  }
  trace_shift(t, 0);
  m->n = 0;
  for (size_t i = 0; i <= table.mask; i++)
    if (table.slots[i].key.data)
      table.slots[m->n++] = table.slots[i];
  m->entries = must_realloc(table.slots, m->n * sizeof(*m->entries));
  qsort(m->entries, m->n, sizeof(*m->entries), entry_cmp);
  struct digester *g = digester_new();
  for (size_t i = 0; i < m->n; i++)
    digester_add(g, m->entries[i].key, m->entries[i].value);
  digester_end(g, &m->digest);
}

void model_free(struct model *m) {
  for (size_t i = 0; i < m->n; i++)
    free((void *)m->entries[i].key.data);
  free(m->entries);
  digest_free(&m->digest);
  memset(m, 0, sizeof(*m));
}

/* ---------------------------------------------------------------------------------------------- */
/* Check                                                                                          */

void model_check_begin(struct model_check *c, const struct model *m) {
  memset(c, 0, sizeof(*c));
  c->model = m;
  c->digester = digester_new();
}

int model_check_add(struct model_check *c, struct bytes key, struct bytes value, struct fail *f) {
  char text[256];
  digester_add(c->digester, key, value);
  const struct model_entry *e = c->next < c->model->n ? &c->model->entries[c->next] : NULL;
  int order = e ? bytes_cmp(e->key, key) : 1;
  if (order < 0)
    return fail_set(f, "key %s is missing", bytes_print(text, sizeof(text), e->key));
  if (order > 0)
    return fail_set(f, "key %s should not be there", bytes_print(text, sizeof(text), key));
  if (bytes_cmp(e->value, value) != 0)
    return fail_set(f, "key %s has another value: %zu bytes, expected %zu",
                    bytes_print(text, sizeof(text), key), value.size, e->value.size);
  c->next++;
  return 0;
}

int model_check_end(struct model_check *c, struct fail *f) {
  char text[256];
  digester_end(c->digester, &c->digest);
  if (c->next < c->model->n)
    return fail_set(f, "key %s is missing",
                    bytes_print(text, sizeof(text), c->model->entries[c->next].key));
  return 0;
}
