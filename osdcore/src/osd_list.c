/* SPDX-License-Identifier: Apache-2.0
 *
 * osd_list.c - the PGs, and the objects of one.
 */
#include <stdlib.h>

#include "osd_internal.h"

static int by_id(const void *a, const void *b) {
  const struct osd_pg_info *x = a, *y = b;
  return (x->id > y->id) - (x->id < y->id);
}

int osd_pg_list(struct osd *o, struct osd_pg_info **out, size_t *n) {
  int rc = 0;
  if (request_answering())
    return PGLOG_EINVAL;
  pthread_mutex_lock(&o->pgs_lock);
  *n = 0;
  *out = o->n_pgs ? malloc(o->n_pgs * sizeof **out) : NULL;
  if (o->n_pgs && !*out)
    rc = PGLOG_ENOMEM;
  for (struct pg *pg = rc ? NULL : o->pgs; pg; pg = pg->next) {
    if (pg->gone)
      continue;
    pthread_mutex_lock(&pg->lock);
    (*out)[(*n)++] = pg->figures;
    pthread_mutex_unlock(&pg->lock);
  }
  pthread_mutex_unlock(&o->pgs_lock);
  if (*n)
    qsort(*out, *n, sizeof **out, by_id);
  return rc;
}

struct listed {
  struct osd_slice name; /* malloc'ed */
  uint64_t size;
};

struct listing {
  struct listed *v;
  size_t n, cap;
};

static int list_one(void *arg, struct osd_slice key, struct osd_slice value,
                    struct pglog_error *err) {
  struct listing *l = arg;
  struct osd_slice name = {key.data + 6, key.size - 6};
  struct object_state st;
  int rc = object_get(value, &st, err);
  if (rc)
    return osd_error(err, rc, "object %.*s has a malformed record",
                     (int)(name.size < 100 ? name.size : 100), (const char *)name.data);
  size_t cap = l->n == l->cap ? 2 * l->cap + 64 : l->cap;
  struct listed *v = cap == l->cap ? l->v : realloc(l->v, cap * sizeof *v);
  uint8_t *copy = malloc(name.size + 1);
  if (v) {
    l->v = v;
    l->cap = cap;
  }
  if (!v || !copy) {
    free(copy);
    return osd_error(err, PGLOG_ENOMEM, "out of memory for a list of %zu objects", l->n);
  }
  memcpy(copy, name.data, name.size);
  l->v[l->n++] = (struct listed){.name = {copy, name.size}, .size = st.size};
  return 0;
}

static int by_name(const void *a, const void *b) {
  return osd_slice_cmp(((const struct listed *)a)->name, ((const struct listed *)b)->name);
}

static int list_collect(struct osd *o, const struct pg *pg, struct listing *l,
                        struct pglog_error *err) {
  uint8_t begin[8], end[8];
  struct osd_slice b = {begin, hash_bound(begin, 'o', pg->id, pg->bits, false)};
  struct osd_slice e = {end, hash_bound(end, 'o', pg->id, pg->bits, true)};
  return o->kv.scan(o->kv.arg, b, e, list_one, l, err);
}

int osd_list(struct osd *o, uint32_t id,
             int (*fn)(void *arg, const void *name, size_t name_size, uint64_t size), void *arg,
             struct pglog_error *err) {
  struct listing l = {0};
  struct pg *pg;
  int rc = admin_begin(o, id, &pg, err);
  if (rc)
    return rc;
  rc = osd_poisoned(o, err);
  if (rc == 0)
    rc = list_collect(o, pg, &l, err);
  admin_end(o, pg, NULL);
  if (l.n)
    qsort(l.v, l.n, sizeof *l.v, by_name);
  for (size_t i = 0; i < l.n; i++) {
    if (rc == 0)
      rc = fn(arg, l.v[i].name.data, l.v[i].name.size, l.v[i].size);
    free((void *)l.v[i].name.data);
  }
  free(l.v);
  return rc;
}
