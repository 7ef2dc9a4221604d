/* SPDX-License-Identifier: Apache-2.0 */
#include "leaf_internal.h"

enum {
  AT_CRC = 4,
  AT_KIND = 8,
  AT_FLAGS = 9,
  AT_ENTRIES = 10,
  AT_STORED = 12,
  AT_RAW = 14,
  AT_EXPANDED = 16,
  AT_BLOCK = 20,
  AT_GENERATION = 24,
  AT_ARENA = 32,
};

static const uint8_t magic[4] = {'P', 'G', 'L', 'F'};

int leaf_codec_new(struct leaf_codec **out) {
  struct leaf_codec *c = calloc(1, sizeof *c);
  if (!c)
    return PGLOG_ENOMEM;
  c->packed_cap = ZSTD_compressBound(LEAF_RAW_MAX);
  c->packed = malloc(c->packed_cap);
  c->raw = malloc(LEAF_RAW_MAX);
  c->cctx = ZSTD_createCCtx();
  c->dctx = ZSTD_createDCtx();
  if (!c->packed || !c->raw || !c->cctx || !c->dctx) {
    leaf_codec_free(c);
    return PGLOG_ENOMEM;
  }
  ZSTD_CCtx_setParameter(c->cctx, ZSTD_c_compressionLevel, 1);
  ZSTD_CCtx_setParameter(c->cctx, ZSTD_c_contentSizeFlag, 0);
  ZSTD_CCtx_setParameter(c->cctx, ZSTD_c_checksumFlag, 0);
  ZSTD_CCtx_setParameter(c->cctx, ZSTD_c_dictIDFlag, 0);
  *out = c;
  return 0;
}

void leaf_codec_free(struct leaf_codec *c) {
  if (!c)
    return;
  ZSTD_freeCCtx(c->cctx);
  ZSTD_freeDCtx(c->dctx);
  free(c->packed);
  free(c->raw);
  free(c);
}

void leaf_head_write(uint8_t *block, const struct leaf_head *h, const uint8_t *payload) {
  memset(block, 0, LEAF_HEADER);
  memcpy(block, magic, sizeof magic);
  block[AT_KIND] = (uint8_t)h->kind;
  block[AT_FLAGS] = (uint8_t)h->flags;
  put_le16(block + AT_ENTRIES, (uint16_t)h->entries);
  put_le16(block + AT_STORED, (uint16_t)h->stored);
  put_le16(block + AT_RAW, (uint16_t)h->raw);
  put_le32(block + AT_EXPANDED, h->expanded);
  memcpy(block + LEAF_HEADER, payload, h->stored);
  memset(block + LEAF_HEADER + h->stored, 0, LEAF_PAYLOAD - h->stored);
}

static int head_error(const uint8_t *block, const char *what, uint32_t value, uint32_t limit,
                      struct pglog_error *err) {
  return error_set(err, PGLOG_ECORRUPT, "arena block %u: %s is %u (limit %u)",
                   leaf_block_number(block), what, value, limit);
}

int leaf_head_read(struct leaf_head *h, const uint8_t *block, struct pglog_error *err) {
  if (memcmp(block, magic, sizeof magic) != 0)
    return error_set(err, PGLOG_ECORRUPT, "arena block: no magic, its first bytes are 0x%08x",
                     get_le32(block));
  h->kind = block[AT_KIND];
  h->flags = block[AT_FLAGS];
  h->entries = get_le16(block + AT_ENTRIES);
  h->stored = get_le16(block + AT_STORED);
  h->raw = get_le16(block + AT_RAW);
  h->expanded = get_le32(block + AT_EXPANDED);
  bool overflow = h->kind == LEAF_OVERFLOW;
  if (h->kind < LEAF_LEAF || h->kind > LEAF_OVERFLOW)
    return head_error(block, "kind", h->kind, LEAF_OVERFLOW, err);
  uint32_t flags = overflow ? 0 : LEAF_FLAG_ZSTD | LEAF_FLAG_OVERFLOWS;
  if (h->flags & ~flags)
    return head_error(block, "flags", h->flags, flags, err);
  if (overflow ? h->entries != 0 : h->entries == 0 || h->entries > LEAF_ENTRIES_MAX)
    return head_error(block, "number of entries", h->entries, overflow ? 0 : LEAF_ENTRIES_MAX, err);
  if (h->stored == 0 || h->stored > LEAF_PAYLOAD)
    return head_error(block, "stored payload", h->stored, LEAF_PAYLOAD, err);
  if (h->flags & LEAF_FLAG_ZSTD ? h->raw <= LEAF_PAYLOAD : h->raw != h->stored)
    return head_error(block, "payload before compression", h->raw, h->stored, err);
  if (!overflow && h->expanded > LEAF_EXPANDED_MAX)
    return head_error(block, "size of keys and values", h->expanded, LEAF_EXPANDED_MAX, err);
  return 0;
}

uint32_t leaf_block_number(const uint8_t *block) {
  return get_le32(block + AT_BLOCK);
}

uint64_t leaf_generation(const uint8_t *bytes) {
  return get_le64(bytes + AT_GENERATION);
}

static uint32_t block_crc(const uint8_t *bytes) {
  return crc32c(0, bytes + AT_KIND, PGLOG_BLOCK - AT_KIND);
}

void leaf_seal(uint8_t *bytes, uint32_t block, uint64_t generation, uint64_t arena_id) {
  put_le32(bytes + AT_BLOCK, block);
  put_le64(bytes + AT_GENERATION, generation);
  put_le64(bytes + AT_ARENA, arena_id);
  put_le32(bytes + AT_CRC, block_crc(bytes));
}

/* The CRC comes first: behind it every other difference means a misdirected or lost write, and the
 * messages can say so. */
int leaf_verify(const uint8_t *bytes, int kind, uint32_t block, uint64_t generation,
                uint64_t arena_id, struct pglog_error *err) {
  if (memcmp(bytes, magic, sizeof magic) != 0)
    return error_set(err, PGLOG_ECORRUPT, "arena block %u: no magic, its first bytes are 0x%08x",
                     block, get_le32(bytes));
  uint32_t crc = block_crc(bytes), want = get_le32(bytes + AT_CRC);
  if (crc != want)
    return error_set(err, PGLOG_ECORRUPT,
                     "arena block %u: CRC-32C is 0x%08x, its header says 0x%08x", block, crc, want);
  if (leaf_block_number(bytes) != block)
    return error_set(err, PGLOG_ECORRUPT, "arena block %u: holds what was written as block %u",
                     block, leaf_block_number(bytes));
  uint64_t id = get_le64(bytes + AT_ARENA), g = leaf_generation(bytes);
  if (id != arena_id)
    return error_set(err, PGLOG_ECORRUPT,
                     "arena block %u: belongs to arena %016llx, this one is %016llx", block,
                     (unsigned long long)id, (unsigned long long)arena_id);
  if (generation && g != generation)
    return error_set(err, PGLOG_ECORRUPT, "arena block %u: of generation %llu, expected %llu",
                     block, (unsigned long long)g, (unsigned long long)generation);
  if (bytes[AT_KIND] != kind)
    return error_set(err, PGLOG_ECORRUPT, "arena block %u: of kind %u, expected %d", block,
                     bytes[AT_KIND], kind);
  struct leaf_head h;
  return leaf_head_read(&h, bytes, err);
}
