/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as a WriteBatch: walking stays inside the input, and a split keeps every record that is
 * not the rule's, in order, moves the others into one well-formed blob, and adds nothing. The
 * input: 00 which rule, then the batch.
 */
#include "batch.h"
#include "blob.h"
#include "fuzz.h"
#include "rule.h"

#define CF 11 /* of the rule that is not in the default column family */

static void choose_rule(uint8_t which, struct pglog_rule *rule, struct batch_rule *br) {
  memset(rule, 0, sizeof *rule);
  if (which & 1) { /* as Ceph BlueStore */
    strcpy(rule->cf, "P");
    rule->pgid_kind = PGLOG_PGID_FIXED;
    rule->pgid_arg = 8;
  } else {
    strcpy(rule->cf, "default");
    memcpy(rule->prefix, "pg/", 3);
    rule->prefix_len = 3;
    rule->pgid_kind = PGLOG_PGID_UNTIL;
    rule->pgid_arg = '/';
  }
  batch_rule_init(br, rule, which & 1 ? CF : 0);
}

/* An empty range at a key of the rule matches nothing, but a split drops it. */
static bool empty_range(const struct batch_rule *br, const struct batch_record *r) {
  return r->op == BATCH_DELETE_RANGE && r->cf == br->cf_id && slice_eq(r->key, r->value) &&
         rule_has_prefix(br->rule, r->key);
}

struct totals {
  uint32_t counted, taken, kept;
  uint32_t empty; /* ranges kept that are empty or inverted */
  uint32_t hash;  /* of the records that a split must keep as they are */
  bool right;
};

/* Walks the batch; a DeleteRange may be cut by a split and is left out of `hash`. */
static struct totals walk(const struct batch_rule *br, struct slice batch, bool drop_last) {
  struct totals t = {0};
  const uint8_t *p = batch.data + BATCH_HEADER, *end = batch.data + batch.size;
  struct batch_record r;
  struct pglog_error err;
  while (p < end) {
    const uint8_t *from = p;
    if (batch_next(batch.data, &p, end, &r, &err) != 0)
      return t;
    FUZZ_CHECK(p > from && p <= end && batch_op_str(r.op)[0]);
    FUZZ_CHECK(r.raw.data == from && r.raw.size == (size_t)(p - from));
    FUZZ_CHECK(fuzz_inside(r.raw, r.key) && fuzz_inside(r.raw, r.value));
    if (drop_last && p == end)
      break;
    bool match = batch_record_matches(br, &r) || empty_range(br, &r);
    t.counted += batch_op_counted(r.op);
    t.taken += match;
    t.kept += !match;
    t.empty += !match && r.op == BATCH_DELETE_RANGE && slice_cmp(r.key, r.value) >= 0;
    if (!match && r.op != BATCH_DELETE_RANGE)
      t.hash = crc32c(t.hash, r.raw.data, r.raw.size);
  }
  t.right = true;
  return t;
}

static void check_blob(const struct pglog_rule *rule, struct slice out, struct slice blob) {
  struct blob_cursor c;
  struct blob_header h;
  struct blob_op op;
  int rc = blob_open(&c, blob, &h, NULL);
  FUZZ_CHECK(rc == 0 && h.tag == 5 && h.number == 99 && fuzz_inside(out, blob));
  FUZZ_CHECK(blob_check(blob, NULL) == 0);
  while ((rc = blob_next(&c, &op, NULL)) > 0) {
    uint8_t key[2 * PGLOG_KEY_MAX];
    FUZZ_CHECK(op.pgid.size + op.name.size <= PGLOG_KEY_MAX);
    if (op.kind != BLOB_PUT && op.kind != BLOB_DELETE)
      continue;
    memcpy(key, op.pgid.data, op.pgid.size);
    if (op.name.size)
      memcpy(key + op.pgid.size, op.name.data, op.name.size);
    struct slice store_key = slice_make(key, op.pgid.size + op.name.size);
    FUZZ_CHECK(rule_pgid_len(rule, store_key) == op.pgid.size);
  }
  FUZZ_CHECK(rc == 0);
}

/* The last record of a split batch is the blob; before it nothing of the rule's is left. */
static void check_split(const struct batch_rule *br, struct slice batch, struct slice out) {
  struct totals before = walk(br, batch, false), after;
  struct batch_record r = {0};
  const uint8_t *p = out.data + BATCH_HEADER, *end = out.data + out.size;
  FUZZ_CHECK(before.right && before.taken > 0 && out.size > BATCH_HEADER);
  FUZZ_CHECK(batch_sequence(out) == batch_sequence(batch));
  FUZZ_CHECK(batch_count(batch) == before.counted);
  while (p < end)
    FUZZ_CHECK(batch_next(out.data, &p, end, &r, NULL) == 0);
  FUZZ_CHECK(r.op == BATCH_LOG_DATA && blob_is(r.value));
  check_blob(br->rule, out, r.value);
  after = walk(br, out, true);
  FUZZ_CHECK(after.taken == 0 && after.kept >= before.kept && after.hash == before.hash);
  FUZZ_CHECK(batch_count(out) == after.counted && after.empty == before.empty);
}

static void stamp(void *arg, uint64_t *number, uint8_t *tag) {
  (void)arg;
  *number = 99;
  *tag = 5;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct fuzz_in in = {data, data + size};
  struct pglog_rule rule;
  struct batch_rule br;
  struct blob_builder bb = {0};
  struct buf out = {0};
  struct pglog_error err;
  const struct batch_hooks hooks = {.stamp = stamp};
  bool split = false;
  choose_rule(fuzz_byte(&in), &rule, &br);
  struct slice batch = fuzz_bytes(&in, SIZE_MAX);
  int rc = batch_split(&br, batch, &hooks, &bb, &out, &split, &err);
  FUZZ_CHECK(rc <= 0);
  if (rc == 0 && split)
    check_split(&br, batch, slice_make(out.data, out.size));
  else
    FUZZ_CHECK(!split && out.size == 0);
  if (batch.size >= BATCH_HEADER) {
    struct totals t = walk(&br, batch, false);
    FUZZ_CHECK(rc != 0 || split == (t.taken > 0));
    FUZZ_CHECK(rc != 0 || t.right);
    FUZZ_CHECK(t.right || rc < 0);
  } else {
    FUZZ_CHECK(rc == PGLOG_ECORRUPT);
  }
  blob_builder_free(&bb);
  buf_free(&out);
  return 0;
}

static void add(struct buf *b, uint8_t tag, int cf, const char *key, const char *value) {
  uint8_t t[1 + 2 * VARINT64_MAX], *p = t;
  *p++ = tag;
  if (cf >= 0)
    p = put_varint(p, (uint64_t)cf);
  FUZZ_CHECK(buf_append(b, t, (size_t)(p - t)) == 0);
  for (int i = 0; i < 2; i++) {
    const char *s = i ? value : key;
    if (!s)
      continue;
    p = put_varint(t, strlen(s));
    FUZZ_CHECK(buf_append(b, t, (size_t)(p - t)) == 0 && buf_append(b, s, strlen(s)) == 0);
  }
}

/* Each tag that takes part, in and outside of the rule; the count in the header is right. */
static uint32_t fill(struct buf *b, unsigned i) {
  switch (i / 2) {
    case 0:
      add(b, 0x01, -1, "pg/1.2a/0000000012.00000000000000000345", "entry");
      add(b, 0x05, 1, "object", "onode");
      add(b, 0x05, CF, "12345678.0000000012.00000000000000000345", "entry");
      add(b, 0x04, CF, "12345678.0000000012.00000000000000000001", NULL);
      add(b, 0x03, -1, NULL, "the caller's own LogData");
      add(b, 0x00, -1, "pg/1.2a/0000000012.00000000000000000001", NULL);
      add(b, 0x05, CF, "12345678._info", "");
      return 6;
    case 1:
      add(b, 0x0f, -1, "pg/1.2a/0", "pg/1.2a/1");
      add(b, 0x0f, -1, "pf", "ph");
      add(b, 0x0f, -1, "pg/1", "z");
      add(b, 0x0e, CF, "12345678.0", "12345678.1");
      add(b, 0x0f, -1, "a", "b");
      add(b, 0x0f, -1, "pg/2", "pg0"); /* up to the rule's end */
      add(b, 0x0f, -1, "pa", "pg/");
      add(b, 0x0f, -1, "b", "b");
      return 8;
    case 2:
      add(b, 0x07, -1, "pg/short", NULL);
      add(b, 0x08, CF, "short", NULL);
      add(b, 0x02, -1, "counter", "+1");
      add(b, 0x06, 3, "counter", "+1");
      return 4;
    case 3:
      add(b, 0x16, -1, "entity", "columns");
      add(b, 0x09, -1, NULL, NULL);
      add(b, 0x0d, -1, NULL, NULL);
      add(b, 0x0b, -1, NULL, "xid");
      return 1;
    case 4:
      add(b, 0x02, -1, "pg/1.2a/merge", "+1");
      add(b, 0x06, CF, "12345678merge", "+1");
      return 2;
    default:
      return 0;
  }
}

size_t fuzz_seed(unsigned i, uint8_t *out, size_t cap) {
  struct buf b = {0};
  uint8_t header[BATCH_HEADER] = {0};
  if (i >= 12)
    return 0;
  put_le64(header, 1000 + i);
  FUZZ_CHECK(buf_append(&b, header, sizeof header) == 0);
  put_le32(b.data + 8, 0);
  uint32_t count = fill(&b, i);
  put_le32(b.data + 8, count);
  FUZZ_CHECK(b.size < cap);
  out[0] = i & 1;
  memcpy(out + 1, b.data, b.size);
  size_t n = b.size + 1;
  buf_free(&b);
  return n;
}
