/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as a LogData blob: decoding stays inside the input, and what it gives encodes to a blob
 * with the same operations. The input is the blob.
 */
#include "blob.h"
#include "fuzz.h"

static struct slice concat(uint8_t *out, struct slice a, struct slice b) {
  if (a.size)
    memcpy(out, a.data, a.size);
  if (b.size)
    memcpy(out + a.size, b.data, b.size);
  return slice_make(out, a.size + b.size);
}

static bool op_eq(const struct blob_op *a, const struct blob_op *b) {
  return a->kind == b->kind && slice_eq(a->pgid, b->pgid) && slice_eq(a->name, b->name) &&
         slice_eq(a->value, b->value) && slice_eq(a->begin, b->begin) && slice_eq(a->end, b->end);
}

static void check_op(struct slice blob, const struct blob_op *op) {
  FUZZ_CHECK(fuzz_inside(blob, op->pgid) && fuzz_inside(blob, op->name));
  FUZZ_CHECK(fuzz_inside(blob, op->value) && fuzz_inside(blob, op->begin));
  FUZZ_CHECK(fuzz_inside(blob, op->end));
  FUZZ_CHECK(op->pgid.size + op->name.size <= PGLOG_KEY_MAX);
  if (op->kind == BLOB_DELRANGE || op->kind == BLOB_DELREST) {
    FUZZ_CHECK(op->begin.size >= op->pgid.size && op->begin.size <= PGLOG_KEY_MAX);
    FUZZ_CHECK(slice_eq(slice_make(op->begin.data, op->pgid.size), op->pgid));
    FUZZ_CHECK(op->kind == BLOB_DELREST || slice_cmp(op->begin, op->end) < 0);
  } else {
    FUZZ_CHECK(op->kind == BLOB_PUT || op->kind == BLOB_DELETE);
  }
}

static int encode_op(struct blob_builder *b, const struct blob_op *op) {
  uint8_t key[PGLOG_KEY_MAX];
  switch (op->kind) {
    case BLOB_PUT:
      return blob_put(b, concat(key, op->pgid, op->name), op->pgid.size, op->value, NULL);
    case BLOB_DELETE:
      return blob_delete(b, concat(key, op->pgid, op->name), op->pgid.size, NULL);
    case BLOB_DELRANGE:
      return blob_delete_range(b, op->begin, op->pgid.size, op->end, NULL);
    default:
      return blob_delete_range(b, op->begin, op->pgid.size, slice_make(NULL, 0), NULL);
  }
}

static void check_same(struct slice blob, struct slice again) {
  struct blob_cursor a, b;
  struct blob_header ha, hb;
  struct blob_op x, y;
  int rc;
  FUZZ_CHECK(blob_open(&a, blob, &ha, NULL) == 0 && blob_open(&b, again, &hb, NULL) == 0);
  FUZZ_CHECK(ha.tag == hb.tag && ha.number == hb.number);
  do {
    rc = blob_next(&a, &x, NULL);
    FUZZ_CHECK(blob_next(&b, &y, NULL) == rc);
    FUZZ_CHECK(rc <= 0 || op_eq(&x, &y));
  } while (rc > 0);
  FUZZ_CHECK(rc == 0 && again.size <= blob.size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct slice blob = slice_make(data, size), again;
  struct blob_builder b = {0};
  struct blob_cursor c;
  struct blob_header h;
  struct blob_op op;
  struct pglog_error err;
  int rc = blob_open(&c, blob, &h, &err);
  FUZZ_CHECK(rc == 0 || rc == PGLOG_ECORRUPT || rc == PGLOG_ENOTSUP);
  FUZZ_CHECK(rc != 0 || blob_is(blob));
  if (rc == 0) {
    FUZZ_CHECK(blob_begin(&b, h.tag, h.number) == 0);
    while ((rc = blob_next(&c, &op, &err)) > 0) {
      check_op(blob, &op);
      FUZZ_CHECK(encode_op(&b, &op) == 0);
    }
    FUZZ_CHECK(blob_finish(&b, &again, &err) == 0 && blob_check(again, &err) == 0);
    if (rc == 0)
      check_same(blob, again);
  }
  FUZZ_CHECK(blob_check(blob, &err) == (rc > 0 ? 0 : rc));
  blob_builder_free(&b);
  return 0;
}

size_t fuzz_seed(unsigned i, uint8_t *out, size_t cap) {
  static const char *const keys[] = {"1.2a/0000000012.00000000000000000345", "1.2a/_info",
                                     "1.2b/0000000012.00000000000000000001", "short", "1.2b/"};
  struct blob_builder b = {0};
  struct slice s;
  if (i >= 10)
    return 0;
  FUZZ_CHECK(blob_begin(&b, (uint8_t)i, i < 5 ? i : 1000000000000u * i) == 0);
  for (unsigned k = 0; k < i * 3; k++) {
    const char *key = keys[(k + i) % 5];
    const char *slash = strchr(key, '/');
    size_t pgid = slash ? (size_t)(slash - key) + 1 : strlen(key);
    struct slice store_key = slice_make(key, strlen(key));
    int rc;
    if (k % 4 == 0)
      rc = blob_delete(&b, store_key, pgid, NULL);
    else if (k % 7 == 6)
      rc = blob_delete_range(&b, store_key, pgid, slice_make("zz", k % 2 ? 2 : 1), NULL);
    else if (k % 11 == 10)
      rc = blob_delete_range(&b, store_key, pgid, slice_make(NULL, 0), NULL);
    else
      rc = blob_put(&b, store_key, pgid,
                    slice_make("a value, not long, of one log entry", 3 * k % 36), NULL);
    FUZZ_CHECK(rc == 0);
  }
  FUZZ_CHECK(blob_finish(&b, &s, NULL) == 0 && s.size <= cap);
  memcpy(out, s.data, s.size);
  blob_builder_free(&b);
  return s.size;
}
