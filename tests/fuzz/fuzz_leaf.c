/* SPDX-License-Identifier: Apache-2.0
 *
 * Leaf blocks. The input's first byte chooses:
 *  0  the rest is a block as it is: verifying and decoding it gives an error or entries in order;
 *  1  the same with the header's magic, CRC and flags put right first, to get past them;
 *  2  the rest makes entries: packed, sealed and decoded again they are the same;
 *  3  the rest makes a large value and a change of one byte in its overflow blocks: the value comes
 *     back or the damage is found.
 * What decodes in 0 and 1 is packed again as in 2.
 */
#include "fuzz.h"
#include "leaf.h"

#define ENTRIES_MAX LEAF_ENTRIES_MAX
#define BLOCK 1000u
#define GENERATION 5u
#define ARENA 0xabcdef0123456789u

static struct leaf_codec *codec, *reader; /* emit decodes while the packer is at work */

struct packed {
  const struct leaf_entry *e;
  uint32_t n, next; /* entries given to the packer, and seen in blocks */
  uint32_t blocks;
};

static bool ref_eq(const struct leaf_overflow *a, const struct leaf_overflow *b) {
  return a->block == b->block && a->blocks == b->blocks && a->size == b->size &&
         a->stored == b->stored && a->crc == b->crc;
}

static bool entry_eq(const struct leaf_entry *a, const struct leaf_entry *b) {
  if (!slice_eq(a->key, b->key) || a->is_overflow != b->is_overflow)
    return false;
  return a->is_overflow ? ref_eq(&a->overflow, &b->overflow) : slice_eq(a->value, b->value);
}

static int emit(void *arg, struct leaf_block *b, struct pglog_error *err) {
  struct packed *p = arg;
  struct leaf l;
  uint32_t overflows = 0, block = BLOCK + p->blocks++;
  FUZZ_CHECK((uintptr_t)b->bytes % PGLOG_BLOCK == 0 && b->stored <= LEAF_PAYLOAD);
  leaf_seal(b->bytes, block, GENERATION, ARENA);
  FUZZ_CHECK(leaf_verify(b->bytes, LEAF_LEAF, block, GENERATION, ARENA, err) == 0);
  FUZZ_CHECK(leaf_decode(reader, b->bytes, &l, err) == 0);
  FUZZ_CHECK(l.n == b->entries && l.n > 0 && l.n <= p->n - p->next);
  FUZZ_CHECK(slice_eq(b->first, l.e[0].key) && slice_eq(b->last, l.e[l.n - 1].key));
  for (uint32_t i = 0; i < l.n; i++) {
    FUZZ_CHECK(entry_eq(&l.e[i], &p->e[p->next + i]));
    if (l.e[i].is_overflow) {
      FUZZ_CHECK(overflows < b->overflows);
      FUZZ_CHECK(ref_eq(&b->overflow[overflows++], &l.e[i].overflow));
    }
  }
  FUZZ_CHECK(overflows == b->overflows && overflows <= LEAF_OVERFLOWS_MAX);
  p->next += l.n;
  leaf_free(&l);
  return 0;
}

/* Pack the entries, with a boundary behind every `every` of them. */
static void pack(const struct leaf_entry *e, uint32_t n, uint32_t every) {
  struct packed p = {.e = e};
  struct leaf_packer *packer;
  struct pglog_error err = {0};
  FUZZ_CHECK(leaf_packer_new(&packer, codec, LEAF_LEAF, emit, &p) == 0);
  for (uint32_t i = 0; i < n; i++) {
    p.n = i + 1;
    FUZZ_CHECK(leaf_packer_add(packer, &e[i], &err) == 0);
    if (every && i % every == every - 1)
      FUZZ_CHECK(leaf_packer_boundary(packer, &err) == 0);
    FUZZ_CHECK((leaf_packer_pending(packer) == 0) == (p.next == p.n));
  }
  FUZZ_CHECK(leaf_packer_flush(packer, &err) == 0);
  FUZZ_CHECK(p.next == n && leaf_packer_pending(packer) == 0);
  leaf_packer_free(packer);
}

/* Entries that a packer must refuse are left out; the keys stay in order. */
static uint32_t packable(struct leaf_entry *e, uint32_t n) {
  uint32_t kept = 0;
  for (uint32_t i = 0; i < n; i++)
    if (e[i].is_overflow || !leaf_needs_overflow(e[i].key.size, e[i].value.size))
      e[kept++] = e[i];
  return kept;
}

static uint32_t touch(struct slice s) {
  return crc32c(0, s.data, s.size);
}

static void check_leaf(struct leaf *l) {
  size_t expanded = 0;
  uint32_t overflows = 0;
  FUZZ_CHECK(l->n > 0 && l->n <= LEAF_ENTRIES_MAX);
  for (uint32_t i = 0; i < l->n; i++) {
    struct leaf_entry *e = &l->e[i];
    touch(e->key); /* under a sanitizer: all of it may be read */
    touch(e->value);
    expanded += e->key.size + e->value.size;
    overflows += e->is_overflow;
    FUZZ_CHECK(e->key.size <= PGLOG_KEY_MAX && (!e->is_overflow || e->value.size == 0));
    FUZZ_CHECK(i == 0 || slice_cmp(l->e[i - 1].key, e->key) < 0);
    FUZZ_CHECK(leaf_lower_bound(l, e->key) == i);
  }
  FUZZ_CHECK(expanded <= LEAF_EXPANDED_MAX && overflows <= LEAF_OVERFLOWS_MAX);
  uint32_t n = packable(l->e, l->n);
  pack(l->e, n, 0);
}

static void run_block(struct fuzz_in *in, bool repair) {
  _Alignas(PGLOG_BLOCK) static uint8_t b[PGLOG_BLOCK];
  struct pglog_error err;
  struct leaf l;
  struct slice s = fuzz_bytes(in, PGLOG_BLOCK);
  memset(b, 0, sizeof b);
  memcpy(b, s.data, s.size);
  if (repair) {
    memcpy(b, "PGLF", 4);
    b[8] = (uint8_t)(1 + b[8] % 3);
    b[9] &= 3;
    leaf_seal(b, BLOCK, GENERATION, ARENA);
  }
  int kind = b[8];
  int rc = leaf_verify(b, kind, get_le32(b + 20), 0, get_le64(b + 32), &err);
  FUZZ_CHECK(rc == 0 || rc == PGLOG_ECORRUPT);
  if (rc == 0 && (kind == LEAF_LEAF || kind == LEAF_TABLE || kind == LEAF_ROOT)) {
    FUZZ_CHECK(leaf_generation(b) == get_le64(b + 24));
    rc = leaf_decode(reader, b, &l, &err);
    FUZZ_CHECK(rc == 0 || rc == PGLOG_ECORRUPT);
    if (rc == 0) {
      check_leaf(&l);
      leaf_free(&l);
    }
  }
}

/* Each entry: what of the key before it keeps, more key bytes, a value. Those not in order are left
 * out. */
static void run_entries(struct fuzz_in *in) {
  static uint8_t keys[ENTRIES_MAX][PGLOG_KEY_MAX], values[ENTRIES_MAX][2048];
  static struct leaf_entry e[ENTRIES_MAX];
  uint32_t n = 0, every = fuzz_byte(in);
  while (n < ENTRIES_MAX && in->p < in->end) {
    uint8_t form = fuzz_byte(in);
    size_t shared = fuzz_byte(in), other = fuzz_byte(in) % 64;
    if (shared > (n ? e[n - 1].key.size : 0))
      shared = n ? e[n - 1].key.size : 0;
    struct slice more = fuzz_bytes(in, other);
    if (shared)
      memcpy(keys[n], keys[n - 1], shared);
    memcpy(keys[n] + shared, more.data, more.size);
    e[n] = (struct leaf_entry){.key = slice_make(keys[n], shared + more.size)};
    if (form % 16 == 15) {
      uint32_t size = 4096u + fuzz_u16(in);
      e[n].is_overflow = true;
      e[n].overflow = (struct leaf_overflow){form, (size + LEAF_PAYLOAD - 1) / LEAF_PAYLOAD, size,
                                             size, form * 0x01010101u};
    } else { /* by form: like the value before, or not; changed in a byte */
      size_t size = form % 2 && n ? e[n - 1].value.size : (size_t)fuzz_byte(in) * 8;
      for (size_t k = 0; k < size; k++)
        values[n][k] = form % 4 == 1 && n ? values[n - 1][k] : (uint8_t)(k * form >> 3);
      if (size)
        values[n][fuzz_byte(in) % size] ^= fuzz_byte(in);
      e[n].value = slice_make(values[n], size);
    }
    n += n == 0 || slice_cmp(e[n - 1].key, e[n].key) < 0;
  }
  pack(e, n, every % 40);
}

static void run_overflow(struct fuzz_in *in) {
  struct leaf_overflow ref = {0};
  struct pglog_error err = {0};
  uint8_t *bytes, *back = NULL;
  uint8_t seal = fuzz_byte(in), flip = fuzz_byte(in);
  size_t at = fuzz_u16(in) | (size_t)fuzz_byte(in) << 16, size = 1u + fuzz_u16(in);
  struct slice from = fuzz_bytes(in, SIZE_MAX);
  uint8_t *value = malloc(size);
  FUZZ_CHECK(value);
  for (size_t i = 0; i < size; i++)
    value[i] = from.size ? (uint8_t)(from.data[i % from.size] + i / 64) : (uint8_t)(i * i >> 5);
  FUZZ_CHECK(leaf_overflow_encode(codec, slice_make(value, size), &bytes, &ref, &err) == 0);
  FUZZ_CHECK(ref.size == size && ref.stored <= size && ref.blocks > 0);
  FUZZ_CHECK(ref.blocks == (ref.stored + LEAF_PAYLOAD - 1) / LEAF_PAYLOAD);
  ref.block = BLOCK;
  for (uint32_t i = 0; i < ref.blocks; i++)
    leaf_seal(bytes + i * PGLOG_BLOCK, BLOCK + i, GENERATION, ARENA);
  at %= (size_t)ref.blocks * PGLOG_BLOCK;
  bytes[at] ^= flip;
  uint32_t hit = (uint32_t)(at / PGLOG_BLOCK);
  if (seal % 2) /* the block's CRC is right again: now the value's own must find it */
    leaf_seal(bytes + hit * PGLOG_BLOCK, BLOCK + hit, GENERATION, ARENA);
  int rc = leaf_overflow_decode(reader, &ref, bytes, ARENA, &back, &err);
  FUZZ_CHECK(rc == 0 || (rc == PGLOG_ECORRUPT && flip));
  FUZZ_CHECK(rc != 0 || flip == 0 || seal % 2);
  if (rc == 0) {
    FUZZ_CHECK(memcmp(back, value, size) == 0);
    free(back);
  }
  free(value);
  free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct fuzz_in in = {data, data + size};
  if (!codec)
    FUZZ_CHECK(leaf_codec_new(&codec) == 0 && leaf_codec_new(&reader) == 0);
  switch (fuzz_byte(&in) % 4) {
    case 0:
      run_block(&in, false);
      break;
    case 1:
      run_block(&in, true);
      break;
    case 2:
      run_entries(&in);
      break;
    default:
      run_overflow(&in);
  }
  return 0;
}

struct keep {
  uint8_t *out;
};

static int keep_first(void *arg, struct leaf_block *b, struct pglog_error *err) {
  struct keep *k = arg;
  (void)err;
  if (k->out) {
    leaf_seal(b->bytes, BLOCK, GENERATION, ARENA);
    memcpy(k->out, b->bytes, PGLOG_BLOCK);
    k->out = NULL;
  }
  return 0;
}

/* A packed block of `n` log-like entries. */
static void make_block(uint8_t *out, uint32_t n) {
  struct leaf_packer *p;
  struct keep k = {out};
  char key[80], value[300];
  FUZZ_CHECK(leaf_packer_new(&p, codec, LEAF_LEAF, keep_first, &k) == 0);
  for (uint32_t i = 0; i < n; i++) {
    snprintf(key, sizeof key, "1.2a/0000000012.%020u", i);
    memset(value, 'v', sizeof value);
    snprintf(value, sizeof value, "entry of version %u, client.%u:%u", i, i % 3, i * 7);
    struct leaf_entry e = {.key = slice_make(key, strlen(key)),
                           .value = slice_make(value, n > 5 ? 200 : i * 20)};
    if (i % 5 == 3)
      e = (struct leaf_entry){.key = e.key, .is_overflow = true, .overflow = {i, 2, 5000, 5000, i}};
    FUZZ_CHECK(leaf_packer_add(p, &e, NULL) == 0);
  }
  FUZZ_CHECK(leaf_packer_flush(p, NULL) == 0 && !k.out);
  leaf_packer_free(p);
}

size_t fuzz_seed(unsigned i, uint8_t *out, size_t cap) {
  static const uint32_t counts[] = {1, 2, 5, 30, 500};
  if (!codec)
    FUZZ_CHECK(leaf_codec_new(&codec) == 0 && leaf_codec_new(&reader) == 0);
  FUZZ_CHECK(cap > 2 * PGLOG_BLOCK);
  if (i < 10) {
    out[0] = (uint8_t)(i % 2);
    make_block(out + 1, counts[i / 2]);
    return 1 + PGLOG_BLOCK;
  }
  if (i < 14) { /* entries: form, shared, other, key bytes, and what the form takes */
    uint8_t *p = out;
    *p++ = 2;
    *p++ = (uint8_t)(i == 12 ? 7 : 0);
    for (unsigned k = 0; k < 20u << (i - 10); k++) {
      *p++ = (uint8_t)(i == 13 ? 4 * k + 1 : k);
      *p++ = k ? 4 : 0;
      *p++ = 4;
      memcpy(p, (uint8_t[]){'k', (uint8_t)(k >> 8), (uint8_t)k, 'x'}, 4);
      memcpy(p + 4, (uint8_t[]){9, (uint8_t)k, 3}, 3);
      p += 7;
    }
    return (size_t)(p - out);
  }
  if (i < 20) { /* seal, flip, at (3), size (2), pattern */
    uint8_t head[] = {3, (uint8_t)(i & 1), (uint8_t)(i < 16 ? 0 : 1), 40, 16, 0, 0, 0};
    put_le16(head + 6, (uint16_t)(i * i * 100));
    memcpy(out, head, sizeof head);
    for (size_t k = 0; k < 700; k++)
      out[sizeof head + k] = (uint8_t)(i % 3 ? k * k * 2654435761u >> 13 : k >> 4);
    return sizeof head + 700;
  }
  return 0;
}
