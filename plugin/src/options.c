/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <stddef.h>
#include <stdio.h>

#include "rule.h"

#define KIB (1ull << 10)
#define MIB (1ull << 20)
#define GIB (1ull << 30)
#define TIB (1ull << 40)

#define URI_SCHEME "pglog://"

void pglog_options_init(struct pglog_options *o) {
  memset(o, 0, sizeof *o);
  strcpy(o->rule.cf, "default");
  memcpy(o->rule.prefix, "pglog/", 6);
  o->rule.prefix_len = 6;
  o->rule.pgid_kind = PGLOG_PGID_UNTIL;
  o->rule.pgid_arg = '/';
  o->memory = 64 * MIB;
  o->arena_max = 4 * GIB;
  o->arena_step = 16 * MIB;
  o->queue_depth = 32;
}

/* ---------------------------------------------------------------------------------------------- */
/* Values                                                                                         */

struct option;

/* One option being set. */
struct setting {
  struct pglog_options *o;
  const struct option *option;
  struct slice value;
  struct pglog_error *err;
};

struct option {
  const char *name;
  int (*set)(const struct setting *s);
  size_t at, size; /* of the field in struct pglog_options */
  uint64_t min, max;
};

static int refuse(const struct setting *s, const char *why) {
  char value[160];
  return error_set(s->err, PGLOG_EINVAL, "option %s=%s: %s", s->option->name,
                   key_print(value, sizeof value, s->value), why);
}

static bool has_prefix(struct slice s, const char *prefix) {
  size_t n = strlen(prefix);
  return s.size >= n && memcmp(s.data, prefix, n) == 0;
}

static struct slice skip(struct slice s, size_t n) {
  return slice_make(s.data + n, s.size - n);
}

static int hex_digit(uint8_t c) {
  if (c >= '0' && c <= '9')
    return c - '0';
  c |= 0x20;
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Digits only; false if there are none, others, or more than fit. */
static bool get_decimal(struct slice s, uint64_t *v) {
  *v = 0;
  for (size_t i = 0; i < s.size; i++) {
    if (s.data[i] < '0' || s.data[i] > '9')
      return false;
    if (__builtin_mul_overflow(*v, 10, v) ||
        __builtin_add_overflow(*v, (uint64_t)(s.data[i] - '0'), v))
      return false;
  }
  return s.size > 0;
}

/* Decode hex digits into at most `cap` bytes. Returns their number, or a reason in *why. */
static size_t get_hex(struct slice s, uint8_t *out, size_t cap, const char **why) {
  *why = NULL;
  if (s.size == 0 || s.size % 2)
    *why = "an even number of hex digits, at least two, must follow 0x";
  else if (s.size / 2 > cap)
    *why = "too many bytes";
  for (size_t i = 0; !*why && i < s.size; i += 2) {
    int high = hex_digit(s.data[i]), low = hex_digit(s.data[i + 1]);
    if (high < 0 || low < 0)
      *why = "not a hex digit after 0x";
    else
      out[i / 2] = (uint8_t)(high << 4 | low);
  }
  return s.size / 2;
}

/* A power of 1024 multiplied by n, as text: "64M". */
static const char *size_print(char out[32], uint64_t v) {
  static const char units[] = "\0KMGT";
  int u = 0;
  while (v && v % 1024 == 0 && u < 4) {
    v /= 1024;
    u++;
  }
  snprintf(out, 32, "%llu%.1s", (unsigned long long)v, units + u);
  return out;
}

static int range_fault(const char *name, uint64_t v, uint64_t min, uint64_t max,
                       struct pglog_error *err) {
  char a[32], b[32], c[32];
  return error_set(err, PGLOG_EINVAL, "option %s=%s is out of range %s..%s", name, size_print(a, v),
                   size_print(b, min), size_print(c, max));
}

static void *field(const struct pglog_options *o, const struct option *option) {
  return (char *)(uintptr_t)o + option->at;
}

static uint64_t get_number(const struct pglog_options *o, const struct option *option) {
  const void *p = field(o, option);
  return option->size == 4 ? *(const uint32_t *)p : *(const uint64_t *)p;
}

static int store_number(const struct setting *s, uint64_t v) {
  const struct option *option = s->option;
  if (v < option->min || v > option->max)
    return range_fault(option->name, v, option->min, option->max, s->err);
  if (option->size == 4)
    *(uint32_t *)field(s->o, option) = (uint32_t)v;
  else
    *(uint64_t *)field(s->o, option) = v;
  return 0;
}

static int set_count(const struct setting *s) {
  uint64_t v;
  if (!get_decimal(s->value, &v))
    return refuse(s, "not a whole number below 2^64");
  return store_number(s, v);
}

static int set_size(const struct setting *s) {
  static const char why[] = "not a size (digits, then K, M, G, T or nothing) below 2^64";
  struct slice digits = s->value;
  int shift = 0;
  if (digits.size) {
    uint8_t last = (uint8_t)toupper(digits.data[digits.size - 1]);
    shift = last == 'K' ? 10 : last == 'M' ? 20 : last == 'G' ? 30 : last == 'T' ? 40 : 0;
    if (shift)
      digits.size--;
  }
  uint64_t v;
  if (!get_decimal(digits, &v) || v > UINT64_MAX >> shift)
    return refuse(s, why);
  return store_number(s, v << shift);
}

static int get_bool(const struct setting *s, bool *v) {
  struct slice t = s->value;
  *v = slice_eq(t, slice_make("1", 1)) || slice_eq(t, slice_make("true", 4));
  if (!*v && !slice_eq(t, slice_make("0", 1)) && !slice_eq(t, slice_make("false", 5)))
    return refuse(s, "want 0 or 1");
  return 0;
}

static int set_format(const struct setting *s) {
  return get_bool(s, &s->o->format);
}

static int set_guard(const struct setting *s) {
  bool guard = true;
  int rc = get_bool(s, &guard);
  s->o->no_guard = !guard;
  return rc;
}

static int set_text(const struct setting *s) {
  char why[64];
  if (s->value.size >= s->option->size) {
    snprintf(why, sizeof why, "%zu bytes, the limit is %zu", s->value.size, s->option->size - 1);
    return refuse(s, why);
  }
  if (s->value.size && memchr(s->value.data, '\0', s->value.size))
    return refuse(s, "has a NUL byte");
  char *p = field(s->o, s->option);
  if (s->value.size)
    memcpy(p, s->value.data, s->value.size);
  p[s->value.size] = '\0';
  return 0;
}

static int set_cf(const struct setting *s) {
  if (s->value.size == 0)
    return refuse(s, "the column family name is empty");
  s->o->rule_given = true;
  return set_text(s);
}

static int set_prefix(const struct setting *s) {
  struct pglog_rule *r = &s->o->rule;
  struct slice v = s->value;
  uint8_t bytes[PGLOG_PREFIX_MAX];
  bool hex = has_prefix(v, "0x");
  size_t n = hex ? (v.size - 2) / 2 : v.size;
  if (n > PGLOG_PREFIX_MAX) {
    char why[64];
    snprintf(why, sizeof why, "%zu bytes, the limit is %d", n, PGLOG_PREFIX_MAX);
    return refuse(s, why);
  }
  if (hex) {
    const char *why;
    get_hex(skip(v, 2), bytes, sizeof bytes, &why);
    if (why)
      return refuse(s, why);
  } else if (n) {
    memcpy(bytes, v.data, n);
  }
  memset(r->prefix, 0, sizeof r->prefix);
  if (n)
    memcpy(r->prefix, bytes, n);
  r->prefix_len = (uint8_t)n;
  s->o->rule_given = true;
  return 0;
}

static int set_pgid(const struct setting *s) {
  struct pglog_rule *r = &s->o->rule;
  s->o->rule_given = true;
  if (has_prefix(s->value, "fixed:")) {
    uint64_t n;
    if (!get_decimal(skip(s->value, 6), &n) || n < 1 || n > 255)
      return refuse(s, "fixed: needs a number of bytes in 1..255");
    r->pgid_kind = PGLOG_PGID_FIXED;
    r->pgid_arg = (uint16_t)n;
    return 0;
  }
  if (!has_prefix(s->value, "until:"))
    return refuse(s, "want fixed:N or until:C");
  struct slice c = skip(s->value, 6);
  uint8_t byte;
  if (c.size == 1) {
    byte = c.data[0];
  } else {
    const char *why = "";
    if (c.size == 4 && has_prefix(c, "0x"))
      get_hex(skip(c, 2), &byte, 1, &why);
    if (why)
      return refuse(s, "until: needs exactly one byte, as it is or as 0xHH");
  }
  r->pgid_kind = PGLOG_PGID_UNTIL;
  r->pgid_arg = byte;
  return 0;
}

#define FIELD(f) offsetof(struct pglog_options, f), sizeof(((struct pglog_options *)0)->f)

static const struct option options[] = {
    {"prefix", set_prefix, FIELD(rule.prefix), 0, 0},
    {"cf", set_cf, FIELD(rule.cf), 0, 0},
    {"pgid", set_pgid, FIELD(rule.pgid_arg), 0, 0},
    {"arena", set_text, FIELD(arena), 0, 0},
    {"wal_dir", set_text, FIELD(wal_dir), 0, 0},
    {"base", set_text, FIELD(base), 0, 0},
    {"memory", set_size, FIELD(memory), MIB, TIB},
    {"arena_max", set_size, FIELD(arena_max), MIB, 16 * TIB},
    {"arena_step", set_size, FIELD(arena_step), 64 * KIB, GIB},
    {"queue_depth", set_count, FIELD(queue_depth), 1, 1024},
    {"format", set_format, FIELD(format), 0, 0},
    {"guard", set_guard, FIELD(no_guard), 0, 0},
};

#define N_OPTIONS (sizeof options / sizeof options[0])

/* ---------------------------------------------------------------------------------------------- */
/* Text                                                                                           */

struct parser {
  struct pglog_options *o;
  struct pglog_error *err;
  uint32_t seen; /* bit i: options[i] was set */
};

static int set_option(struct parser *ps, struct slice name, struct slice value) {
  for (size_t i = 0; i < N_OPTIONS; i++) {
    if (!slice_eq(name, slice_make(options[i].name, strlen(options[i].name))))
      continue;
    struct setting s = {ps->o, &options[i], value, ps->err};
    if (ps->seen & 1u << i)
      return refuse(&s, "given twice");
    ps->seen |= 1u << i;
    return options[i].set(&s);
  }
  char text[80];
  return error_set(ps->err, PGLOG_EINVAL,
                   "unknown option '%s'; known are prefix, cf, pgid, arena, wal_dir, base, memory, "
                   "arena_max, arena_step, queue_depth, format, guard",
                   key_print(text, sizeof text, name));
}

static int no_equals(struct parser *ps, struct slice pair) {
  char text[160];
  return error_set(ps->err, PGLOG_EINVAL, "options: '%s' is not KEY=VALUE",
                   key_print(text, sizeof text, pair));
}

/* Cut the part before the first `c` off *s; all of it if there is none. */
static struct slice cut(struct slice *s, uint8_t c) {
  const uint8_t *at = s->size ? memchr(s->data, c, s->size) : NULL;
  struct slice head = {s->data, at ? (size_t)(at - s->data) : s->size};
  *s = skip(*s, head.size + (at != NULL));
  return head;
}

/* Resolve the %XX escapes of `s` into `out`, which has room for s.size bytes. False: malformed. */
static bool unescape(struct slice s, uint8_t *out, struct slice *res) {
  size_t n = 0;
  for (size_t i = 0; i < s.size; i++) {
    uint8_t c = s.data[i];
    if (c == '%') {
      int high = i + 2 < s.size ? hex_digit(s.data[i + 1]) : -1;
      int low = i + 2 < s.size ? hex_digit(s.data[i + 2]) : -1;
      if (high < 0 || low < 0)
        return false;
      c = (uint8_t)(high << 4 | low);
      i += 2;
    }
    out[n++] = c;
  }
  *res = slice_make(out, n);
  return true;
}

/* `space` has room for the longest pair. */
static int uri_pair(struct parser *ps, struct slice pair, uint8_t *space) {
  struct slice rest = pair, name = cut(&rest, '='), value;
  if (name.size == pair.size)
    return no_equals(ps, pair);
  char text[160];
  if (!unescape(name, space, &name) || !unescape(rest, space + name.size, &value))
    return error_set(ps->err, PGLOG_EINVAL, "options: a %% in '%s' without two hex digits",
                     key_print(text, sizeof text, pair));
  return set_option(ps, name, value);
}

static int parse_uri(struct parser *ps, struct slice query) {
  if (query.size == 0)
    return 0;
  char text[160];
  if (query.data[0] != '?')
    return error_set(ps->err, PGLOG_EINVAL, "options: '%s' after %s is not ?KEY=VALUE&...",
                     key_print(text, sizeof text, query), URI_SCHEME);
  uint8_t *space = malloc(query.size);
  if (!space)
    return error_set(ps->err, PGLOG_ENOMEM, "options: no memory for %zu bytes", query.size);
  query = skip(query, 1);
  int rc = 0;
  while (rc == 0 && query.size) {
    struct slice pair = cut(&query, '&');
    if (pair.size)
      rc = uri_pair(ps, pair, space);
  }
  free(space);
  return rc;
}

static struct slice trim(struct slice s) {
  while (s.size && isspace(s.data[0]))
    s = skip(s, 1);
  while (s.size && isspace(s.data[s.size - 1]))
    s.size--;
  return s;
}

/* The length of the braced part at the front of `s`, braces included; 0 if it is not closed. */
static size_t braced(struct slice s) {
  size_t depth = 0;
  for (size_t i = 0; i < s.size; i++) {
    if (s.data[i] == '{')
      depth++;
    else if (s.data[i] == '}' && --depth == 0)
      return i + 1;
  }
  return 0;
}

/* Cut the value, which begins at the front of *s, off, up to and with the ';' behind it. */
static int cut_value(struct parser *ps, struct slice *s, struct slice *value) {
  *s = trim(*s);
  if (s->size == 0 || s->data[0] != '{') {
    *value = trim(cut(s, ';'));
    return 0;
  }
  char text[160];
  size_t n = braced(*s);
  if (n == 0)
    return error_set(ps->err, PGLOG_EINVAL, "options: a brace is not closed in '%s'",
                     key_print(text, sizeof text, *s));
  *value = slice_make(s->data + 1, n - 2);
  *s = skip(*s, n);
  struct slice behind = trim(cut(s, ';'));
  if (behind.size)
    return error_set(ps->err, PGLOG_EINVAL, "options: '%s' behind a closing brace",
                     key_print(text, sizeof text, behind));
  return 0;
}

static int parse_string(struct parser *ps, struct slice s) {
  bool first = true;
  while ((s = trim(s)).size) {
    if (s.data[0] == ';') {
      s = skip(s, 1);
      continue;
    }
    struct slice whole = s, name = cut(&s, '='), value;
    if (name.size == whole.size || memchr(name.data, ';', name.size))
      return no_equals(ps, cut(&whole, ';'));
    int rc = cut_value(ps, &s, &value);
    if (rc)
      return rc;
    if (!first)
      rc = set_option(ps, trim(name), value);
    first = false; /* the first is the id, which the caller has seen */
    if (rc)
      return rc;
  }
  return 0;
}

/* Does the text begin with id=pglog, as a whole pair? */
static bool has_id(struct slice s) {
  struct slice pair = cut(&s, ';'), name = cut(&pair, '=');
  return slice_eq(trim(name), slice_make("id", 2)) && slice_eq(trim(pair), slice_make("pglog", 5));
}

int pglog_options_parse(struct pglog_options *o, const char *text, struct pglog_error *err) {
  struct parser ps = {o, err, 0};
  struct slice s = slice_make(text, strlen(text));
  if (has_prefix(s, URI_SCHEME))
    return parse_uri(&ps, skip(s, strlen(URI_SCHEME)));
  s = trim(s);
  while (s.size >= 2 && s.data[0] == '{' && braced(s) == s.size)
    s = trim(slice_make(s.data + 1, s.size - 2));
  if (has_id(s))
    return parse_string(&ps, s);
  char shown[160];
  return error_set(err, PGLOG_EINVAL, "options: '%s' begins with neither %s nor id=pglog",
                   key_print(shown, sizeof shown, slice_make(text, strlen(text))), URI_SCHEME);
}

/* ---------------------------------------------------------------------------------------------- */
/* Check                                                                                          */

static int check_numbers(const struct pglog_options *o, struct pglog_error *err) {
  for (size_t i = 0; i < N_OPTIONS; i++) {
    const struct option *option = &options[i];
    if (option->max == 0)
      continue;
    uint64_t v = get_number(o, option);
    if (v < option->min || v > option->max)
      return range_fault(option->name, v, option->min, option->max, err);
  }
  if (o->arena_max % PGLOG_BLOCK || o->arena_step % PGLOG_BLOCK)
    return error_set(
        err, PGLOG_EINVAL,
        "option arena_max=%llu and arena_step=%llu: not multiples of a block, %u bytes",
        (unsigned long long)o->arena_max, (unsigned long long)o->arena_step, PGLOG_BLOCK);
  char a[32], b[32];
  if (o->arena_max < o->arena_step)
    return error_set(err, PGLOG_EINVAL, "option arena_max=%s is less than arena_step=%s",
                     size_print(a, o->arena_max), size_print(b, o->arena_step));
  return 0;
}

static int check_texts(const struct pglog_options *o, struct pglog_error *err) {
  for (size_t i = 0; i < N_OPTIONS; i++) {
    const struct option *option = &options[i];
    if (option->set == set_text && !memchr(field(o, option), '\0', option->size))
      return error_set(err, PGLOG_EINVAL, "option %s: longer than the limit of %zu bytes",
                       option->name, option->size - 1);
  }
  struct slice base = slice_make(o->base, strlen(o->base));
  if (has_prefix(base, URI_SCHEME) || has_id(base))
    return error_set(err, PGLOG_EINVAL, "option base=%.80s: the plugin cannot lie on itself",
                     o->base);
  return 0;
}

int pglog_options_check(const struct pglog_options *o, struct pglog_error *err) {
  int rc = rule_check(&o->rule, err);
  if (!rc)
    rc = check_numbers(o, err);
  if (!rc)
    rc = check_texts(o, err);
  if (rc || !o->io)
    return rc;
  const struct pglog_io *io = o->io;
  if (!io->submit || !io->sync || !io->size || !io->grow || !io->allocated || !io->close)
    return error_set(err, PGLOG_EINVAL, "option io: one of its functions is missing");
  return 0;
}
