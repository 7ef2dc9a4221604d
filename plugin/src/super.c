/* SPDX-License-Identifier: Apache-2.0
 *
 * The superblock's bytes. The layout is in arena.h.
 */
#include "arena.h"

enum {
  AT_CRC = 8,
  AT_VERSION = 12,
  AT_GENERATION = 16,
  AT_ARENA_ID = 24,
  AT_WAL = 32,
  AT_WAL_OFFSET = 40,
  AT_SEQUENCE = 48,
  AT_BLOBS = 56,
  AT_ROOT_BLOCK = 64,
  AT_ROOT_BLOCKS = 68,
  AT_TABLES = 72,
  AT_LEAVES = 80,
  AT_ENTRIES = 88,
  AT_OVERFLOW = 96,
  AT_CF_ID = 104,
  AT_FLAGS = 108,
  AT_N_WALS = 110,
  AT_IDENTITY_LEN = 112,
  AT_ZERO = 113,
  AT_RULE_LEN = 114,
  AT_ROOT_GENERATION = 116,
  AT_IDENTITY = 124,
  AT_RULE = AT_IDENTITY + SUPER_IDENTITY_MAX,
  AT_WALS = 512,
  AT_REST = AT_WALS + 8 * SUPER_WALS_MAX,
};
_Static_assert(AT_RULE + RULE_ENCODED_MAX <= AT_WALS, "the rule must fit into the first sector");
_Static_assert(AT_REST <= PGLOG_BLOCK, "the list of WALs must fit into the block");

#define FLAG_INVALIDATED 1u

static uint32_t block_crc(const uint8_t *block) {
  static const uint8_t zero[4];
  uint32_t crc = crc32c(crc32c(0, block, AT_CRC), zero, sizeof zero);
  return crc32c(crc, block + AT_VERSION, PGLOG_BLOCK - AT_VERSION);
}

const char *super_wrong(const struct super *s) {
  if (s->generation == 0)
    return "generation is 0";
  if (s->arena_id == 0)
    return "arena id is 0";
  if (strnlen(s->identity, sizeof s->identity) > SUPER_IDENTITY_MAX)
    return "identity is too long";
  if ((s->root_block == 0) != (s->root_blocks == 0))
    return "one of root block and root size is 0";
  if (s->root_generation > s->generation || (s->root_generation == 0) != (s->root_block == 0))
    return "root generation is out of range";
  if (s->root_block == 1 || (uint64_t)s->root_block + s->root_blocks > UINT64_C(1) << 32)
    return "root block is out of range";
  if (s->n_wals > SUPER_WALS_MAX)
    return "too many WALs";
  for (uint32_t i = 0; i < s->n_wals; i++) {
    if (s->wals[i] < s->wal)
      return "a listed WAL is older than the check point's";
    if (i > 0 && s->wals[i] <= s->wals[i - 1])
      return "listed WALs do not ascend";
  }
  return NULL;
}

void super_encode(const struct super *s, uint8_t *block) {
  memset(block, 0, PGLOG_BLOCK);
  memcpy(block, SUPER_MAGIC, SUPER_MAGIC_LEN);
  put_le32(block + AT_VERSION, PGLOG_FORMAT_VERSION);
  put_le64(block + AT_GENERATION, s->generation);
  put_le64(block + AT_ARENA_ID, s->arena_id);
  put_le64(block + AT_WAL, s->wal);
  put_le64(block + AT_WAL_OFFSET, s->wal_offset);
  put_le64(block + AT_SEQUENCE, s->sequence);
  put_le64(block + AT_BLOBS, s->blobs);
  put_le32(block + AT_ROOT_BLOCK, s->root_block);
  put_le32(block + AT_ROOT_BLOCKS, s->root_blocks);
  put_le64(block + AT_ROOT_GENERATION, s->root_generation);
  put_le64(block + AT_TABLES, s->tables);
  put_le64(block + AT_LEAVES, s->leaves);
  put_le64(block + AT_ENTRIES, s->entries);
  put_le64(block + AT_OVERFLOW, s->overflow_blocks);
  put_le32(block + AT_CF_ID, s->cf_id);
  put_le16(block + AT_FLAGS, s->invalidated ? FLAG_INVALIDATED : 0);
  put_le16(block + AT_N_WALS, (uint16_t)s->n_wals);
  size_t id_len = strnlen(s->identity, SUPER_IDENTITY_MAX);
  block[AT_IDENTITY_LEN] = (uint8_t)id_len;
  memcpy(block + AT_IDENTITY, s->identity, id_len);
  put_le16(block + AT_RULE_LEN, (uint16_t)rule_encode(&s->rule, block + AT_RULE));
  for (uint32_t i = 0; i < s->n_wals; i++)
    put_le64(block + AT_WALS + 8 * i, s->wals[i]);
  put_le32(block + AT_CRC, block_crc(block));
}

static bool all_zero(const uint8_t *p, size_t n) {
  return n == 0 || (p[0] == 0 && memcmp(p, p + 1, n - 1) == 0);
}

/* Lengths and zero bytes. What is wrong, or NULL. */
static const char *layout_wrong(const uint8_t *b) {
  size_t id_len = b[AT_IDENTITY_LEN], rule_len = get_le16(b + AT_RULE_LEN);
  size_t n_wals = get_le16(b + AT_N_WALS);
  if (id_len > SUPER_IDENTITY_MAX)
    return "identity is too long";
  if (memchr(b + AT_IDENTITY, 0, id_len))
    return "identity has a NUL in it";
  if (rule_len > RULE_ENCODED_MAX)
    return "rule is too long";
  if (n_wals > SUPER_WALS_MAX)
    return "too many WALs";
  if ((get_le16(b + AT_FLAGS) & ~FLAG_INVALIDATED) != 0)
    return "unknown flags";
  if (b[AT_ZERO] != 0 || !all_zero(b + AT_IDENTITY + id_len, SUPER_IDENTITY_MAX - id_len) ||
      !all_zero(b + AT_RULE + rule_len, AT_WALS - AT_RULE - rule_len) ||
      !all_zero(b + AT_WALS + 8 * n_wals, PGLOG_BLOCK - AT_WALS - 8 * n_wals))
    return "reserved bytes are not zero";
  return NULL;
}

static void read_fields(struct super *s, const uint8_t *b) {
  memset(s, 0, sizeof *s);
  s->generation = get_le64(b + AT_GENERATION);
  s->arena_id = get_le64(b + AT_ARENA_ID);
  s->wal = get_le64(b + AT_WAL);
  s->wal_offset = get_le64(b + AT_WAL_OFFSET);
  s->sequence = get_le64(b + AT_SEQUENCE);
  s->blobs = get_le64(b + AT_BLOBS);
  s->root_block = get_le32(b + AT_ROOT_BLOCK);
  s->root_blocks = get_le32(b + AT_ROOT_BLOCKS);
  s->root_generation = get_le64(b + AT_ROOT_GENERATION);
  s->tables = get_le64(b + AT_TABLES);
  s->leaves = get_le64(b + AT_LEAVES);
  s->entries = get_le64(b + AT_ENTRIES);
  s->overflow_blocks = get_le64(b + AT_OVERFLOW);
  s->cf_id = get_le32(b + AT_CF_ID);
  s->invalidated = (get_le16(b + AT_FLAGS) & FLAG_INVALIDATED) != 0;
  s->n_wals = get_le16(b + AT_N_WALS);
  memcpy(s->identity, b + AT_IDENTITY, b[AT_IDENTITY_LEN]);
  for (uint32_t i = 0; i < s->n_wals; i++)
    s->wals[i] = get_le64(b + AT_WALS + 8 * i);
}

int super_decode(struct super *s, const uint8_t *block, struct pglog_error *err) {
  uint32_t crc = get_le32(block + AT_CRC), version = get_le32(block + AT_VERSION);
  if (memcmp(block, SUPER_MAGIC, SUPER_MAGIC_LEN) != 0)
    return error_set(err, PGLOG_ECORRUPT, "no superblock's magic");
  uint32_t want = block_crc(block);
  if (crc != want)
    return error_set(err, PGLOG_ECORRUPT, "CRC-32C is %08x, stored is %08x", want, crc);
  if (version != PGLOG_FORMAT_VERSION)
    return error_set(err, PGLOG_EMISMATCH, "format version is %u; this library's is %u", version,
                     PGLOG_FORMAT_VERSION);
  const char *wrong = layout_wrong(block);
  if (wrong)
    return error_set(err, PGLOG_ECORRUPT, "%s", wrong);
  read_fields(s, block);
  int rc = rule_decode(&s->rule, slice_make(block + AT_RULE, get_le16(block + AT_RULE_LEN)), err);
  if (rc != 0)
    return rc;
  wrong = super_wrong(s);
  return wrong ? error_set(err, PGLOG_ECORRUPT, "%s", wrong) : 0;
}
