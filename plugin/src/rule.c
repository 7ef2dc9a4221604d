/* SPDX-License-Identifier: Apache-2.0 */
#include "rule.h"

#include <stdio.h>

size_t rule_range_end(const struct pglog_rule *r, uint8_t *out) {
  size_t n = r->prefix_len;
  while (n > 0 && r->prefix[n - 1] == 0xff)
    n--;
  if (n == 0)
    return 0;
  memcpy(out, r->prefix, n);
  out[n - 1]++;
  return n;
}

bool rule_eq(const struct pglog_rule *a, const struct pglog_rule *b) {
  return strcmp(a->cf, b->cf) == 0 && a->pgid_kind == b->pgid_kind && a->pgid_arg == b->pgid_arg &&
         slice_eq(slice_make(a->prefix, a->prefix_len), slice_make(b->prefix, b->prefix_len));
}

/* Can this byte stand for itself in an option's text? */
static bool is_plain(uint8_t c) {
  return c > 0x20 && c < 0x7f && !memchr("%&;={}", c, 6);
}

/* The prefix so that it can be parsed again: as text, or as 0xHEX. */
static void prefix_print(const struct pglog_rule *r, char out[2 * PGLOG_PREFIX_MAX + 3]) {
  bool plain = r->prefix_len < 2 || memcmp(r->prefix, "0x", 2) != 0;
  for (size_t i = 0; i < r->prefix_len; i++)
    plain = plain && is_plain(r->prefix[i]);
  if (plain) {
    memcpy(out, r->prefix, r->prefix_len);
    out[r->prefix_len] = '\0';
    return;
  }
  out += sprintf(out, "0x");
  for (size_t i = 0; i < r->prefix_len; i++)
    out += sprintf(out, "%02x", r->prefix[i]);
}

const char *rule_print(const struct pglog_rule *r, char *out, size_t cap) {
  char prefix[2 * PGLOG_PREFIX_MAX + 3];
  prefix_print(r, prefix);
  if (r->pgid_kind == PGLOG_PGID_FIXED)
    snprintf(out, cap, "cf=%s prefix=%s pgid=fixed:%u", r->cf, prefix, r->pgid_arg);
  else if (is_plain((uint8_t)r->pgid_arg))
    snprintf(out, cap, "cf=%s prefix=%s pgid=until:%c", r->cf, prefix, r->pgid_arg);
  else
    snprintf(out, cap, "cf=%s prefix=%s pgid=until:0x%02x", r->cf, prefix, r->pgid_arg);
  return out;
}

int rule_check(const struct pglog_rule *r, struct pglog_error *err) {
  if (!memchr(r->cf, '\0', sizeof r->cf))
    return error_set(err, PGLOG_EINVAL,
                     "rule: the column family name is longer than the limit of %d",
                     PGLOG_CF_NAME_MAX);
  if (r->cf[0] == '\0')
    return error_set(err, PGLOG_EINVAL, "rule: the column family name is empty");
  if (strcmp(r->cf, PGLOG_GUARD_CF) == 0)
    return error_set(err, PGLOG_EINVAL, "rule: cf=%s is the guard column family", r->cf);
  if (r->prefix_len > PGLOG_PREFIX_MAX)
    return error_set(err, PGLOG_EINVAL, "rule: prefix of %d bytes, the limit is %d", r->prefix_len,
                     PGLOG_PREFIX_MAX);
  if (r->prefix_len == 0 && strcmp(r->cf, "default") == 0)
    return error_set(
        err, PGLOG_EINVAL,
        "rule: an empty prefix in the default column family would take every key of it; "
        "name another one with cf=NAME, or a prefix");
  if (r->pgid_kind == PGLOG_PGID_FIXED) {
    if (r->pgid_arg < 1 || r->pgid_arg > 255)
      return error_set(err, PGLOG_EINVAL, "rule: pgid=fixed:%d is not in 1..255", r->pgid_arg);
  } else if (r->pgid_kind == PGLOG_PGID_UNTIL) {
    if (r->pgid_arg > 255)
      return error_set(err, PGLOG_EINVAL, "rule: pgid=until: byte %d is not in 0..255",
                       r->pgid_arg);
  } else {
    return error_set(err, PGLOG_EINVAL, "rule: unknown kind %d of PG id", r->pgid_kind);
  }
  return 0;
}

size_t rule_encode(const struct pglog_rule *r, uint8_t *out) {
  size_t cf_len = strlen(r->cf);
  uint8_t *p = out;
  *p++ = r->pgid_kind;
  *p++ = r->prefix_len;
  put_le16(p, r->pgid_arg);
  p += 2;
  memcpy(p, r->prefix, r->prefix_len);
  p += r->prefix_len;
  *p++ = (uint8_t)cf_len;
  memcpy(p, r->cf, cf_len);
  return (size_t)(p + cf_len - out);
}

int rule_decode(struct pglog_rule *r, struct slice in, struct pglog_error *err) {
  const uint8_t *p = in.data, *end = in.data + in.size;
  memset(r, 0, sizeof *r);
  if (in.size < 5 || p[1] > PGLOG_PREFIX_MAX || in.size < 5u + p[1])
    return error_set(err, PGLOG_ECORRUPT, "rule: cut off or malformed at %zu bytes", in.size);
  r->pgid_kind = p[0];
  r->prefix_len = p[1];
  r->pgid_arg = get_le16(p + 2);
  memcpy(r->prefix, p + 4, r->prefix_len);
  p += 4 + r->prefix_len;
  size_t cf_len = *p++;
  if (cf_len > (size_t)(end - p) || memchr(p, '\0', cf_len))
    return error_set(err, PGLOG_ECORRUPT, "rule: malformed column family name of %zu bytes",
                     cf_len);
  memcpy(r->cf, p, cf_len);
  for (p += cf_len; p < end; p++)
    if (*p)
      return error_set(err, PGLOG_ECORRUPT, "rule: byte %zu behind it is not zero",
                       (size_t)(p - in.data));
  struct pglog_error why;
  if (rule_check(r, &why))
    return error_set(err, PGLOG_ECORRUPT, "%s", why.text);
  return 0;
}
