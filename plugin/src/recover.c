/* SPDX-License-Identifier: Apache-2.0
 *
 * recover.c - brings the store to where the WALs are: every record after the check point, oldest file
 * first, through the same code as live (I8). Runs at LOCK, before RocksDB reads anything.
 *
 * Damage is anything but clean records up to the end of the file. Only the last WAL may be cut, only at
 * or behind the check point, and only as the recovery mode allows; what is cut off is saved first. So
 * RocksDB reads clean files afterwards and stops where the store has stopped. For the same reason the
 * bytes that the check point covers are looked at as well: RocksDB may still read them, and would
 * stop at damage there, short of what the arena holds.
 */
#include <stdio.h>

#include "store_internal.h"

#define READ_CHUNK (1u << 20)

struct replay {
  struct store *s;
  uint64_t number;
  bool bad;              /* a record is well-formed, but cannot be */
  uint64_t bad_at;
  struct pglog_error why;
};

static int replay_record(void *arg, const struct wal_record *r, struct pglog_error *err) {
  struct replay *p = arg;
  if (p->bad)
    return PGLOG_OK;
  int rc = wal_take_record(p->s, p->number, r, false, err);
  if (rc == PGLOG_ECORRUPT) {
    p->bad = true;
    p->bad_at = r->start;
    p->why = *err;
    queue_drop_uncommitted(p->s);
    return PGLOG_OK;
  }
  if (rc != PGLOG_OK)
    return rc;
  queue_commit(p->s, p->number, r->end);
  p->s->st.recovered_records++;
  return PGLOG_OK;
}

static int damage_error(struct replay *p, uint64_t at, const char *what, const char *rule,
                        struct pglog_error *err) {
  return error_set(err, PGLOG_ECORRUPT, "WAL %06llu.log is damaged at offset %llu: %s; %s",
                   (unsigned long long)p->number, (unsigned long long)at, what, rule);
}

/* What to do with a WAL that does not end cleanly. */
static int handle_end(struct replay *p, enum wal_end end, uint64_t at, const char *what, bool last,
                      struct pglog_error *err) {
  struct store *s = p->s;
  if (!last)
    return damage_error(p, at, what, "it is not the last WAL, so nothing may be cut", err);
  switch (s->config.recovery_mode) {
    case STORE_ABSOLUTE:
      return damage_error(p, at, what, "kAbsoluteConsistency allows none", err);
    case STORE_TOLERATE_TAIL:
      if (end == WAL_END_DAMAGE)
        return damage_error(p, at, what,
                            "kTolerateCorruptedTailRecords cuts only a record that is torn by the "
                            "end of the file", err);
      break;
    case STORE_POINT_IN_TIME:
      break;
    default:
      return error_set(err, PGLOG_ENOTSUP, "wal_recovery_mode=%d is not supported",
                       s->config.recovery_mode);
  }
  int rc = s->config.ops.cut(s->config.ops.arg, p->number, at, err);
  if (rc == PGLOG_OK)
    store_log(s, 1, "WAL %06llu.log was cut at offset %llu (saved to %06llu.log.cut): %s",
              (unsigned long long)p->number, (unsigned long long)at,
              (unsigned long long)p->number, what);
  return rc;
}

/* Feed the parser the bytes from where it is up to `to`, or to the end of the file. */
static int feed_file(struct replay *p, struct wal_parser *w, uint64_t to, wal_record_fn fn,
                     struct pglog_error *err) {
  struct store_wal_ops *ops = &p->s->config.ops;
  uint8_t *chunk = malloc(READ_CHUNK);
  int rc = chunk ? PGLOG_OK : error_set(err, PGLOG_ENOMEM, "out of memory for recovery");
  size_t want, got;
  do {
    want = to - w->offset < READ_CHUNK ? (size_t)(to - w->offset) : READ_CHUNK;
    got = 0;
    if (rc == PGLOG_OK && want)
      rc = ops->read(ops->arg, p->number, w->offset, chunk, want, &got, err);
    if (rc == PGLOG_OK && got)
      rc = wal_feed(w, chunk, got, fn, p, err);
    p->s->st.recovered_bytes += got;
  } while (rc == PGLOG_OK && want && got == want);
  free(chunk);
  return rc;
}

static int covered_record(void *arg, const struct wal_record *r, struct pglog_error *err) {
  (void)arg;
  (void)r;
  (void)err;
  return PGLOG_OK;
}

/* The bytes [0, to) of a WAL are in the check point: whole records, or RocksDB stops among them. */
static int check_covered(struct store *s, const struct store_wal_file *f, uint64_t to,
                         struct pglog_error *err) {
  struct replay p = {.s = s, .number = f->number};
  struct wal_parser w;
  wal_init(&w, f->number, 0, true);
  int rc = feed_file(&p, &w, to, covered_record, err);
  enum wal_end end = wal_end(&w);
  if (rc == PGLOG_OK && end != WAL_END_CLEAN)
    rc = damage_error(&p, w.good_end, end == WAL_END_TORN ? "a record does not end" : w.damage,
                      "the check point covers it, so nothing may be cut", err);
  wal_free(&w);
  return rc;
}

static int recover_file(struct store *s, const struct store_wal_file *f, uint64_t from, bool last,
                        struct pglog_error *err) {
  struct replay p = {.s = s, .number = f->number};
  if (f->size < from)
    return error_set(err, PGLOG_ECORRUPT,
                     "WAL %06llu.log has %llu bytes, but the check point covers %llu",
                     (unsigned long long)f->number, (unsigned long long)f->size,
                     (unsigned long long)from);
  /* I5: a failed fsync of an earlier process may have left pages that are clean but not on disk. */
  int rc = s->config.ops.rewrite(s->config.ops.arg, f->number, from, err);
  if (rc != PGLOG_OK)
    return rc;
  struct wal_parser w;
  wal_init(&w, f->number, from, true);
  rc = feed_file(&p, &w, UINT64_MAX, replay_record, err);
  enum wal_end end = p.bad ? WAL_END_DAMAGE : wal_end(&w);
  uint64_t size = p.bad ? p.bad_at : w.good_end;
  if (rc == PGLOG_OK && end != WAL_END_CLEAN) {
    const char *what = p.bad                   ? p.why.text
                       : end == WAL_END_TORN   ? "a record is torn by the end of the file"
                       : end == WAL_END_ZEROS  ? "the rest of the file is zeros"
                                               : w.damage;
    s->st.cut_bytes += f->size - size;
    rc = handle_end(&p, end, size, what, last, err);
  }
  wal_free(&w);
  if (rc != PGLOG_OK)
    return rc;
  pthread_mutex_lock(&s->queue_mutex);
  struct wal_info *info = wal_find(s, f->number);
  info->size = info->durable = size;
  pthread_mutex_unlock(&s->queue_mutex);
  return PGLOG_OK;
}

static int check_listed(struct store *s, const struct store_wal_file *f, size_t n,
                        struct pglog_error *err) {
  for (uint32_t i = 0; i < s->super.n_wals; i++) {
    bool found = false;
    for (size_t k = 0; k < n && !found; k++)
      found = f[k].number == s->super.wals[i];
    if (!found)
      return error_set(err, PGLOG_EMISMATCH,
                       "WAL %06llu.log is missing: check point %llu of the arena needs it (it covers "
                       "the WALs up to %06llu.log, offset %llu)",
                       (unsigned long long)s->super.wals[i],
                       (unsigned long long)s->super.generation, (unsigned long long)s->super.wal,
                       (unsigned long long)s->super.wal_offset);
  }
  return PGLOG_OK;
}

static int add_known(struct store *s, const struct store_wal_file *f, size_t n,
                     struct pglog_error *err) {
  int rc = PGLOG_OK;
  pthread_mutex_lock(&s->queue_mutex);
  for (size_t i = 0; i < n && rc == PGLOG_OK; i++) {
    struct wal_info *w;
    rc = wal_add(s, f[i].number, &w);
    if (rc == PGLOG_OK) {
      w->size = w->durable = f[i].size;
      w->exists = w->dir_synced = true;
    }
  }
  pthread_mutex_unlock(&s->queue_mutex);
  return rc == PGLOG_OK ? rc : error_set(err, rc, "out of memory for %zu WAL files", n);
}

/* Everything recovered is resolved: RocksDB will replay the same records. */
static int apply_recovered(struct store *s, struct pglog_error *err) {
  pthread_mutex_lock(&s->queue_mutex);
  s->resolved_wal = s->n_wals ? s->wals[s->n_wals - 1].number : 0;
  pthread_mutex_unlock(&s->queue_mutex);
  pthread_mutex_lock(&s->mutex);
  int rc = apply_resolved(s, UINT64_MAX, err);
  pthread_mutex_unlock(&s->mutex);
  return rc;
}

int store_recover(struct store *s, struct pglog_error *err) {
  struct store_wal_ops *ops = &s->config.ops;
  struct store_wal_file *f = NULL;
  size_t n = 0;
  uint64_t start = now_us();
  int rc = ops->list(ops->arg, &f, &n, err);
  if (rc == PGLOG_OK)
    rc = check_listed(s, f, n, err);
  if (rc == PGLOG_OK)
    rc = add_known(s, f, n, err);
  /* The directory too: what is read now must still be there after the next crash. */
  if (rc == PGLOG_OK && n)
    rc = ops->sync_dir(ops->arg, err);
  for (size_t i = 0; i < n && rc == PGLOG_OK; i++) {
    bool behind = f[i].number < s->super.wal;
    uint64_t from = f[i].number == s->super.wal ? s->super.wal_offset : 0;
    if (!f[i].archived && (behind || from))
      rc = check_covered(s, &f[i], behind ? UINT64_MAX : from, err);
    if (rc != PGLOG_OK || behind)
      continue;
    rc = recover_file(s, &f[i], from, i + 1 == n, err);
    /* Keeps the queue small, and memory with it. */
    if (rc == PGLOG_OK)
      rc = apply_recovered(s, err);
  }
  free(f);
  s->st.recovered_blobs = s->applied_ord - s->super.blobs;
  s->st.recovery_us = now_us() - start;
  return rc;
}
