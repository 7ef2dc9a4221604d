/* SPDX-License-Identifier: Apache-2.0
 *
 * rule.h - which keys are pg log keys, and where their PG id ends. Pure functions.
 *
 * A pg log key in RocksDB is  prefix | PG id | name.  The store keeps keys without the prefix
 * ("store keys"): PG id | name. Ordering store keys by (PG id, name) is the same as ordering them
 * bytewise, because no PG id is a proper prefix of another one unless the shorter one has only the
 * empty name (it is then a key too short to hold a whole id).
 */
#ifndef PGLOG_RULE_H
#define PGLOG_RULE_H

#include "util.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Does `key` (of the rule's column family) begin with the prefix? */
static inline bool rule_has_prefix(const struct pglog_rule *r, struct slice key) {
  return key.size >= r->prefix_len && memcmp(key.data, r->prefix, r->prefix_len) == 0;
}

/* The key without the prefix. Only for keys with the prefix. */
static inline struct slice rule_store_key(const struct pglog_rule *r, struct slice key) {
  return slice_make(key.data + r->prefix_len, key.size - r->prefix_len);
}

/* Bytes of the PG id at the front of a store key; the whole key if it holds no complete id. */
static inline size_t rule_pgid_len(const struct pglog_rule *r, struct slice store_key) {
  if (r->pgid_kind == PGLOG_PGID_FIXED)
    return store_key.size < r->pgid_arg ? store_key.size : r->pgid_arg;
  const void *c = store_key.size ? memchr(store_key.data, r->pgid_arg, store_key.size) : NULL;
  return c ? (size_t)((const uint8_t *)c - store_key.data) + 1 : store_key.size;
}

/* End of the rule's range: the smallest key after every key with the prefix. Writes it to `out`
 * (PGLOG_PREFIX_MAX bytes) and returns its length; 0 means that the range has no end. */
size_t rule_range_end(const struct pglog_rule *r, uint8_t *out);

bool rule_eq(const struct pglog_rule *a, const struct pglog_rule *b);

/* One line, e.g. `cf=P prefix= pgid=fixed:8`. Returns `out`. */
const char *rule_print(const struct pglog_rule *r, char *out, size_t cap);

/* Is every field within its limits, and does the rule leave something to RocksDB (the whole default
 * column family is refused, and so is the guard)? PGLOG_EINVAL. */
int rule_check(const struct pglog_rule *r, struct pglog_error *err);

/* Encoded form for the superblock:
 *
 *     00     enum pglog_pgid_kind
 *     01     bytes of the prefix
 *     02-03  pgid_arg, LE
 *     04-    prefix; then one byte with the length of the column family's name; then the name
 *
 * Encode returns the length (at most RULE_ENCODED_MAX). Decode checks every field, and that nothing
 * but zeros follows; PGLOG_ECORRUPT. */
#define RULE_ENCODED_MAX (4 + PGLOG_PREFIX_MAX + 1 + PGLOG_CF_NAME_MAX + 1)
size_t rule_encode(const struct pglog_rule *r, uint8_t *out);
int rule_decode(struct pglog_rule *r, struct slice in, struct pglog_error *err);

#ifdef __cplusplus
}
#endif
#endif
