/* SPDX-License-Identifier: Apache-2.0 */
#include "leaf_internal.h"

/* Blocks of a chain that carries `stored` bytes. */
static uint32_t chain_blocks(uint64_t stored) {
  return (uint32_t)((stored + LEAF_PAYLOAD - 1) / LEAF_PAYLOAD);
}

bool leaf_overflow_ok(const struct leaf_overflow *o) {
  return o->size >= 1 && o->size <= PGLOG_VALUE_MAX && o->stored >= 1 && o->stored <= o->size &&
         o->blocks == chain_blocks(o->stored) && (uint64_t)o->block + o->blocks <= UINT32_MAX;
}

uint8_t *leaf_ref_put(uint8_t *p, const struct leaf_overflow *o) {
  p = put_varint(p, o->block);
  p = put_varint(p, o->blocks);
  p = put_varint(p, o->size);
  p = put_varint(p, o->stored);
  put_le32(p, o->crc);
  return p + 4;
}

const uint8_t *leaf_ref_get(const uint8_t *p, const uint8_t *end, struct leaf_overflow *o) {
  if (!(p = get_varint32(p, end, &o->block)) || !(p = get_varint32(p, end, &o->blocks)) ||
      !(p = get_varint32(p, end, &o->size)) || !(p = get_varint32(p, end, &o->stored)) ||
      end - p < 4)
    return NULL;
  o->crc = get_le32(p);
  return leaf_overflow_ok(o) ? p + 4 : NULL;
}

/* The frame carries its content size here, so that a reader has a second word for how much to
 * allocate. Returns 0 if the frame does not save a block. */
static size_t compress(struct leaf_codec *c, struct slice value, uint8_t *out, size_t cap) {
  ZSTD_CCtx_setParameter(c->cctx, ZSTD_c_contentSizeFlag, 1);
  size_t n = ZSTD_compress2(c->cctx, out, cap, value.data, value.size);
  ZSTD_CCtx_setParameter(c->cctx, ZSTD_c_contentSizeFlag, 0);
  return ZSTD_isError(n) ? 0 : n;
}

int leaf_overflow_encode(struct leaf_codec *c, struct slice value, uint8_t **bytes,
                         struct leaf_overflow *ref, struct pglog_error *err) {
  if (value.size == 0)
    return error_set(err, PGLOG_EINVAL, "an empty value has no overflow blocks");
  if (value.size > PGLOG_VALUE_MAX)
    return error_set(err, PGLOG_ETOOBIG, "value of %zu bytes: the limit is %u", value.size,
                     PGLOG_VALUE_MAX);
  /* A frame is worth it when it saves a block: give it one less than the value needs. */
  size_t cap = (size_t)(chain_blocks(value.size) - 1) * LEAF_PAYLOAD;
  uint8_t *frame = cap ? malloc(cap) : NULL;
  if (cap && !frame)
    return error_set(err, PGLOG_ENOMEM, "no memory to compress a value of %zu bytes", value.size);
  size_t stored = frame ? compress(c, value, frame, cap) : 0;
  const uint8_t *from = stored ? frame : value.data;
  if (!stored)
    stored = value.size;

  uint32_t blocks = chain_blocks(stored);
  uint8_t *out = aligned_alloc(PGLOG_BLOCK, (size_t)blocks * PGLOG_BLOCK);
  if (!out) {
    free(frame);
    return error_set(err, PGLOG_ENOMEM, "no memory for %u overflow blocks", blocks);
  }
  for (uint32_t i = 0; i < blocks; i++) {
    size_t at = (size_t)i * LEAF_PAYLOAD, left = stored - at;
    uint32_t n = left < LEAF_PAYLOAD ? (uint32_t)left : LEAF_PAYLOAD;
    struct leaf_head h = {.kind = LEAF_OVERFLOW, .stored = n, .raw = n, .expanded = i};
    leaf_head_write(out + (size_t)i * PGLOG_BLOCK, &h, from + at);
  }
  free(frame);
  ref->blocks = blocks;
  ref->size = (uint32_t)value.size;
  ref->stored = (uint32_t)stored;
  ref->crc = crc32c(0, value.data, value.size);
  *bytes = out;
  return 0;
}

/* Check block i of the chain and append its slice at out. */
static int gather(const struct leaf_overflow *ref, uint32_t i, const uint8_t *block,
                  uint64_t generation, uint64_t arena_id, uint8_t *out, struct pglog_error *err) {
  int rc = leaf_verify(block, LEAF_OVERFLOW, ref->block + i, generation, arena_id, err);
  if (rc < 0)
    return rc;
  struct leaf_head h;
  if ((rc = leaf_head_read(&h, block, err)) < 0)
    return rc;
  size_t at = (size_t)i * LEAF_PAYLOAD, left = ref->stored - at;
  size_t want = left < LEAF_PAYLOAD ? left : LEAF_PAYLOAD;
  if (h.expanded != i || h.stored != want)
    return error_set(err, PGLOG_ECORRUPT,
                     "arena block %u: part %u with %u bytes of an overflow value, expected part %u "
                     "with %zu bytes",
                     ref->block + i, h.expanded, h.stored, i, want);
  memcpy(out + at, block + LEAF_HEADER, want);
  return 0;
}

/* Replace the frame in *buf by its content. */
static int expand(struct leaf_codec *c, const struct leaf_overflow *ref, uint8_t **buf,
                  struct pglog_error *err) {
  if (ZSTD_getFrameContentSize(*buf, ref->stored) != ref->size)
    return error_set(err, PGLOG_ECORRUPT,
                     "arena block %u: the frame of an overflow value does not hold %u bytes",
                     ref->block, ref->size);
  uint8_t *out = malloc(ref->size);
  if (!out)
    return error_set(err, PGLOG_ENOMEM, "no memory for a value of %u bytes", ref->size);
  size_t n = ZSTD_decompressDCtx(c->dctx, out, ref->size, *buf, ref->stored);
  free(*buf);
  *buf = out;
  if (n != ref->size)
    return error_set(err, PGLOG_ECORRUPT, "arena block %u: overflow value does not decompress: %s",
                     ref->block, ZSTD_isError(n) ? ZSTD_getErrorName(n) : "wrong size");
  return 0;
}

int leaf_overflow_decode(struct leaf_codec *c, const struct leaf_overflow *ref,
                         const uint8_t *bytes, uint64_t arena_id, uint8_t **value,
                         struct pglog_error *err) {
  if (!leaf_overflow_ok(ref))
    return error_set(err, PGLOG_ECORRUPT,
                     "overflow reference to %u blocks from block %u with %u bytes for a value of "
                     "%u bytes is not consistent",
                     ref->blocks, ref->block, ref->stored, ref->size);
  uint8_t *buf = malloc(ref->stored);
  if (!buf)
    return error_set(err, PGLOG_ENOMEM, "no memory for an overflow value of %u bytes", ref->stored);
  int rc = 0;
  /* One check point wrote the whole chain: the first block's generation holds for all. */
  for (uint32_t i = 0; i < ref->blocks && rc == 0; i++)
    rc = gather(ref, i, bytes + (size_t)i * PGLOG_BLOCK, i ? leaf_generation(bytes) : 0, arena_id,
                buf, err);
  if (rc == 0 && ref->stored < ref->size)
    rc = expand(c, ref, &buf, err);
  uint32_t crc = rc == 0 ? crc32c(0, buf, ref->size) : 0;
  if (rc == 0 && crc != ref->crc)
    rc = error_set(err, PGLOG_ECORRUPT,
                   "arena block %u: CRC-32C of the overflow value is 0x%08x, its reference says "
                   "0x%08x",
                   ref->block, crc, ref->crc);
  if (rc < 0) {
    free(buf);
    return rc;
  }
  *value = buf;
  return 0;
}
