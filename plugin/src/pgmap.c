/* SPDX-License-Identifier: Apache-2.0
 *
 * pgmap.c - see pgmap.h.
 */
#include "pgmap.h"

#define CHUNK_MAX 64u        /* entries of a full chunk */
#define CHUNK_MIN 4u         /* capacity of a map's first chunk; chunks grow by doubling */
#define CHUNK_SPARSE 16u     /* a chunk with fewer entries is merged with a neighbour ... */
#define CHUNK_MERGED 48u     /* ... if the two then have at most this many */
#define ROW_INLINE 2u        /* chunk pointers inside struct pgmap */
#define FINGERS 6u           /* five streams of a PG and one to spare */
#define VERS_MIN 8u          /* versions of the first slab block; blocks grow by doubling ... */
#define VERS_MAX 128u        /* ... up to this, unless more are reserved at once */
#define VER_GONE 0xfffffffeu /* vlen: removed by a range delete, kept for its older versions */
#define NOWHERE UINT32_MAX   /* chunk of an unset finger */

_Static_assert(PGLOG_VALUE_MAX < VER_GONE, "a value length could be taken for a marker");

struct chunk {
  uint16_t n, cap;
  uint16_t gone; /* entries whose newest version is VER_GONE */
  struct pgmap_entry e[];
};

/* The place of a recent change. A finger may be out of date: whether a key belongs at or right
 * behind it is decided by comparing keys, so that is a lost chance and no error. */
struct finger {
  uint32_t chunk, slot;
};

/* Where a key is, or would be inserted: slot can be the chunk's n. */
struct place {
  uint32_t chunk, slot;
  bool found;
  bool behind;     /* right behind a recent change: part of an ascending stream */
  uint32_t finger; /* the one that knew it; FINGERS: none */
};

struct vers {
  struct vers *next;
  struct pgmap_ver v[];
};

/* Masks are disjoint and sorted. `ord` is the first ordinal at which the range is hidden: a later
 * range delete over the same keys has nothing to add. */
struct mask {
  const uint8_t *begin, *end; /* end NULL: no end */
  uint32_t begin_len, end_len;
  uint64_t ord;
};

struct masks {
  size_t n, cap;
  struct { /* where pgmap_mask() was last, so that a walk is linear */
    uint64_t changes, at;
    size_t i, pos;
  } walk;
  struct mask m[];
};

struct pgmap {
  struct chunk **row;
  uint32_t n, cap; /* of row */
  struct chunk *row0[ROW_INLINE];
  struct finger fingers[FINGERS]; /* most recent first */
  size_t entries, memory;
  uint64_t changes;
  struct vers *blocks;    /* slab blocks of versions */
  struct pgmap_ver *free; /* released versions, linked by `older` */
  struct pgmap_ver *bump; /* unused rest of the newest block */
  uint32_t n_free, n_bump;
  uint32_t next_block; /* versions of the next block */
  size_t n_older;      /* versions in use */
  struct masks *masks; /* NULL until the first range delete */
};

/* --- versions --------------------------------------------------------------------------------- */

/* Can an open view see a version or mask of ordinal `ord`? */
static inline bool seen(uint64_t view_max, uint64_t ord) {
  return view_max && ord <= view_max;
}

static void ver_release(struct pgmap *m, struct pgmap_ver *v) {
  v->older = m->free;
  m->free = v;
  m->n_free++;
  m->n_older--;
}

/* Make sure that the next `n` calls of ver_take() find one. */
static int ver_reserve(struct pgmap *m, size_t n) {
  if ((size_t)m->n_free + m->n_bump >= n)
    return 0;
  size_t count = m->next_block ? m->next_block : VERS_MIN;
  if (count < n)
    count = n;
  if (count > UINT32_MAX / 2)
    return PGLOG_ENOMEM;
  size_t bytes = sizeof(struct vers) + count * sizeof(struct pgmap_ver);
  struct vers *b = malloc(bytes);
  if (!b)
    return PGLOG_ENOMEM;
  b->next = m->blocks;
  m->blocks = b;
  m->memory += bytes;
  for (; m->n_bump; m->n_bump--, m->n_free++) {
    m->bump->older = m->free;
    m->free = m->bump++;
  }
  m->bump = b->v;
  m->n_bump = (uint32_t)count;
  m->next_block = count * 2 < VERS_MAX ? (uint32_t)count * 2 : VERS_MAX;
  return 0;
}

static struct pgmap_ver *ver_take(struct pgmap *m) {
  m->n_older++;
  if (m->free) {
    struct pgmap_ver *v = m->free;
    m->free = v->older;
    m->n_free--;
    return v;
  }
  m->n_bump--;
  return m->bump++;
}

/* Release the versions at the head of a chain that no view can see. All that follow a visible one
 * are kept: the lowest open view is not known. */
static struct pgmap_ver *chain_trim(struct pgmap *m, struct pgmap_ver *v, uint64_t view_max) {
  while (v && !seen(view_max, v->ord)) {
    struct pgmap_ver *older = v->older;
    ver_release(m, v);
    v = older;
  }
  return v;
}

/* Must a change at `ord` keep the version that it replaces? */
static inline bool ver_keep(const struct pgmap_ver *v, uint64_t ord, uint64_t view_max) {
  return seen(view_max, v->ord) && v->ord < ord;
}

/* The chain below a change at `ord` that replaces *v. A version was reserved if ver_keep(). */
static struct pgmap_ver *ver_push(struct pgmap *m, const struct pgmap_ver *v, uint64_t ord,
                                  uint64_t view_max) {
  if (!ver_keep(v, ord, view_max))
    return chain_trim(m, v->older, view_max);
  struct pgmap_ver *old = ver_take(m);
  *old = *v;
  return old;
}

static const struct pgmap_ver *ver_at(const struct pgmap_entry *e, uint64_t at) {
  const struct pgmap_ver *v = &e->v;
  while (v && v->ord > at)
    v = v->older;
  return v && v->vlen != VER_GONE ? v : NULL;
}

/* --- search ----------------------------------------------------------------------------------- */

static inline int key_cmp(struct slice key, const struct pgmap_entry *e) {
  return slice_cmp(key, slice_make(e->key, e->klen));
}

static uint32_t chunk_lower_bound(const struct chunk *c, struct slice key, bool *found) {
  uint32_t lo = 0, hi = c->n;
  *found = false;
  while (lo < hi) {
    uint32_t mid = (lo + hi) / 2;
    int r = key_cmp(key, &c->e[mid]);
    if (r == 0) {
      *found = true;
      return mid;
    }
    if (r < 0)
      hi = mid;
    else
      lo = mid + 1;
  }
  return lo;
}

/* By binary search. In an empty map: chunk 0, slot 0. */
static struct place search(const struct pgmap *m, struct slice key) {
  struct place p = {.finger = FINGERS};
  if (m->n == 0)
    return p;
  uint32_t lo = 1, hi = m->n; /* the first chunk that begins behind key */
  while (lo < hi) {
    uint32_t mid = (lo + hi) / 2;
    if (key_cmp(key, &m->row[mid]->e[0]) < 0)
      hi = mid;
    else
      lo = mid + 1;
  }
  p.chunk = lo - 1;
  p.slot = chunk_lower_bound(m->row[p.chunk], key, &p.found);
  return p;
}

/* Is key at the finger's entry or between it and the next one? At most two comparisons. */
static bool finger_knows(const struct pgmap *m, struct finger f, struct slice key,
                         struct place *p) {
  if (f.chunk >= m->n || f.slot >= m->row[f.chunk]->n)
    return false;
  const struct chunk *c = m->row[f.chunk];
  int r = key_cmp(key, &c->e[f.slot]);
  if (r < 0)
    return false;
  *p = (struct place){.chunk = f.chunk, .slot = f.slot, .found = r == 0};
  if (r == 0)
    return true;
  p->slot++;
  p->behind = true;
  if (p->slot < c->n) {
    r = key_cmp(key, &c->e[p->slot]);
  } else if (p->chunk + 1 < m->n) {
    r = key_cmp(key, &m->row[p->chunk + 1]->e[0]);
    if (r == 0) {
      p->chunk++;
      p->slot = 0;
    }
  } else {
    r = -1;
  }
  p->found = r == 0;
  return r <= 0;
}

/* The finger that stands on the key itself, or else `knower`, which moves there. So a stream that
 * ends before an info record keeps its finger when the record is overwritten. */
static uint32_t finger_at(const struct pgmap *m, const struct place *p, uint32_t knower) {
  for (uint32_t i = knower + 1; p->found && p->behind && i < FINGERS; i++)
    if (m->fingers[i].chunk == p->chunk && m->fingers[i].slot == p->slot)
      return i;
  return knower;
}

static struct place search_fingers(const struct pgmap *m, struct slice key) {
  struct place p;
  for (uint32_t i = 0; i < FINGERS; i++) {
    if (finger_knows(m, m->fingers[i], key, &p)) {
      p.finger = finger_at(m, &p, i);
      return p;
    }
  }
  return search(m, key);
}

/* Remember p as the most recent place. */
static void finger_set(struct pgmap *m, const struct place *p) {
  uint32_t i = p->finger < FINGERS ? p->finger : FINGERS - 1;
  for (; i > 0; i--)
    m->fingers[i] = m->fingers[i - 1];
  m->fingers[0] = (struct finger){p->chunk, p->slot};
}

/* The fingers that a transaction of an OSD uses: its log entry and the info record. */
#define FINGERS_HOT 3u

void pgmap_prefetch(const struct pgmap *m, int step) {
  const char *p = (const char *)m;
  if (step == 0) {
    for (size_t at = 0; at < sizeof *m; at += 64)
      __builtin_prefetch(p + at);
    return;
  }
  if (step == 1)
    __builtin_prefetch(m->row);
  for (uint32_t i = 0; i < FINGERS_HOT && step > 1; i++) {
    struct finger f = m->fingers[i];
    if (f.chunk >= m->n)
      continue;
    const struct chunk *c = m->row[f.chunk];
    if (step == 2) {
      __builtin_prefetch(c);
      __builtin_prefetch(&c->e[f.slot]);
    } else if (f.slot < c->n) {
      __builtin_prefetch(c->e[f.slot].key);
    }
  }
}

/* --- chunks ----------------------------------------------------------------------------------- */

static size_t chunk_bytes(uint32_t cap) {
  return sizeof(struct chunk) + cap * sizeof(struct pgmap_entry);
}

/* Capacity of a new chunk: for `need` entries, and no small steps in a large map. */
static uint32_t chunk_cap(const struct pgmap *m, uint32_t need) {
  size_t cap = CHUNK_MIN;
  while (cap < CHUNK_MAX && (cap < need || cap < m->entries / 8))
    cap *= 2;
  return (uint32_t)cap;
}

static int chunk_grow(struct pgmap *m, uint32_t i, uint32_t cap) {
  struct chunk *c = realloc(m->row[i], chunk_bytes(cap));
  if (!c)
    return PGLOG_ENOMEM;
  m->memory += chunk_bytes(cap) - chunk_bytes(c->cap);
  c->cap = (uint16_t)cap;
  m->row[i] = c;
  return 0;
}

static void chunk_free(struct pgmap *m, struct chunk *c) {
  m->memory -= chunk_bytes(c->cap);
  free(c);
}

static int row_reserve(struct pgmap *m) {
  if (m->n < m->cap)
    return 0;
  if (m->cap >= NOWHERE / 2)
    return PGLOG_ENOMEM;
  bool moved = m->row != m->row0;
  uint32_t cap = m->cap * 2;
  struct chunk **row = realloc(moved ? m->row : NULL, cap * sizeof(*row));
  if (!row)
    return PGLOG_ENOMEM;
  if (!moved)
    memcpy(row, m->row0, sizeof(m->row0));
  m->memory += (cap - (moved ? m->cap : 0)) * sizeof(*row);
  m->row = row;
  m->cap = cap;
  return 0;
}

/* Put an empty chunk into the row as number i. */
static int row_insert(struct pgmap *m, uint32_t i, uint32_t cap) {
  if (row_reserve(m))
    return PGLOG_ENOMEM;
  struct chunk *c = malloc(chunk_bytes(cap));
  if (!c)
    return PGLOG_ENOMEM;
  m->memory += chunk_bytes(cap);
  c->n = c->gone = 0;
  c->cap = (uint16_t)cap;
  memmove(&m->row[i + 1], &m->row[i], (m->n - i) * sizeof(*m->row));
  m->row[i] = c;
  m->n++;
  for (struct finger *f = m->fingers; f < m->fingers + FINGERS; f++)
    if (f->chunk >= i && f->chunk != NOWHERE)
      f->chunk++;
  return 0;
}

static void row_remove(struct pgmap *m, uint32_t i) {
  chunk_free(m, m->row[i]);
  m->n--;
  memmove(&m->row[i], &m->row[i + 1], (m->n - i) * sizeof(*m->row));
  for (struct finger *f = m->fingers; f < m->fingers + FINGERS; f++) {
    if (f->chunk == i)
      f->chunk = NOWHERE;
    else if (f->chunk > i && f->chunk != NOWHERE)
      f->chunk--;
  }
}

/* Move n entries and the fingers on them; `from` and `to` are different chunks. */
static void entries_move(struct pgmap *m, uint32_t from, uint32_t from_slot, uint32_t to,
                         uint32_t to_slot, uint32_t n) {
  struct chunk *a = m->row[from], *b = m->row[to];
  memcpy(&b->e[to_slot], &a->e[from_slot], n * sizeof(a->e[0]));
  for (uint32_t i = 0; i < n && a->gone; i++) {
    bool gone = b->e[to_slot + i].v.vlen == VER_GONE;
    a->gone -= gone;
    b->gone += gone;
  }
  a->n -= (uint16_t)n;
  b->n += (uint16_t)n;
  for (struct finger *f = m->fingers; f < m->fingers + FINGERS; f++)
    if (f->chunk == from && f->slot >= from_slot && f->slot < from_slot + n)
      *f = (struct finger){to, to_slot + (f->slot - from_slot)};
}

/* Split chunk i before slot `at`. */
static int chunk_split(struct pgmap *m, uint32_t i, uint32_t at) {
  uint32_t n = m->row[i]->n - at;
  if (row_insert(m, i + 1, chunk_cap(m, n + 1)))
    return PGLOG_ENOMEM;
  entries_move(m, i, at, i + 1, 0, n);
  return 0;
}

/* Append chunk i + 1 to chunk i. Without memory for it they stay apart. */
static void chunk_merge(struct pgmap *m, uint32_t i) {
  uint32_t n = m->row[i]->n, more = m->row[i + 1]->n, cap = m->row[i]->cap;
  while (cap < n + more)
    cap *= 2;
  if (cap > m->row[i]->cap && chunk_grow(m, i, cap))
    return;
  entries_move(m, i + 1, 0, i, n, more);
  row_remove(m, i + 1);
}

/* Entries were removed from chunk i: it may be empty or sparse now. */
static void chunk_settle(struct pgmap *m, uint32_t i) {
  if (i >= m->n || m->row[i]->n >= CHUNK_SPARSE)
    return;
  if (m->row[i]->n == 0)
    row_remove(m, i);
  else if (i + 1 < m->n && m->row[i]->n + m->row[i + 1]->n <= (int)CHUNK_MERGED)
    chunk_merge(m, i);
  else if (i > 0 && m->row[i - 1]->n + m->row[i]->n <= (int)CHUNK_MERGED)
    chunk_merge(m, i - 1);
}

/* Make room for one more entry at *p, which may move to another chunk. An ascending stream gets a
 * chunk of its own, so that it leaves full chunks behind, in the midst of other keys, too. */
static int make_room(struct pgmap *m, struct place *p) {
  if (m->n == 0)
    return row_insert(m, 0, CHUNK_MIN);
  struct chunk *c = m->row[p->chunk];
  if (c->n < c->cap)
    return 0;
  if (c->cap < CHUNK_MAX)
    return chunk_grow(m, p->chunk, c->cap * 2u);
  if (p->slot == c->n || p->slot == 0) {
    uint32_t i = p->slot ? p->chunk + 1 : p->chunk;
    if (row_insert(m, i, chunk_cap(m, 1)))
      return PGLOG_ENOMEM;
    p->chunk = i;
    p->slot = 0;
    return 0;
  }
  uint32_t at = p->behind ? p->slot : CHUNK_MAX / 2;
  if (chunk_split(m, p->chunk, at))
    return PGLOG_ENOMEM;
  if (p->slot > at) {
    p->chunk++;
    p->slot -= at;
  }
  return 0;
}

static int entry_insert(struct pgmap *m, struct place *p, const struct pgmap_entry *e) {
  if (make_room(m, p))
    return PGLOG_ENOMEM;
  struct chunk *c = m->row[p->chunk];
  if (p->slot < c->n) {
    memmove(&c->e[p->slot + 1], &c->e[p->slot], (c->n - p->slot) * sizeof(c->e[0]));
    for (struct finger *f = m->fingers; f < m->fingers + FINGERS; f++)
      if (f->chunk == p->chunk && f->slot >= p->slot)
        f->slot++;
  }
  c->e[p->slot] = *e;
  c->n++;
  m->entries++;
  return 0;
}

static int entry_replace(struct pgmap *m, const struct place *p, struct pgmap_ver v,
                         uint64_t view_max) {
  struct chunk *c = m->row[p->chunk];
  struct pgmap_entry *e = &c->e[p->slot];
  if (ver_keep(&e->v, v.ord, view_max) && ver_reserve(m, 1))
    return PGLOG_ENOMEM;
  c->gone -= e->v.vlen == VER_GONE;
  v.older = ver_push(m, &e->v, v.ord, view_max);
  e->v = v;
  return 0;
}

/* --- changes ---------------------------------------------------------------------------------- */

int pgmap_new(struct pgmap **out) {
  struct pgmap *m = malloc(sizeof(*m));
  if (!m)
    return PGLOG_ENOMEM;
  *m = (struct pgmap){.row = m->row0, .cap = ROW_INLINE, .memory = sizeof(*m)};
  for (uint32_t i = 0; i < FINGERS; i++)
    m->fingers[i].chunk = NOWHERE;
  *out = m;
  return 0;
}

void pgmap_free(struct pgmap *m) {
  if (!m)
    return;
  for (uint32_t i = 0; i < m->n; i++)
    free(m->row[i]);
  if (m->row != m->row0)
    free(m->row);
  while (m->blocks) {
    struct vers *next = m->blocks->next;
    free(m->blocks);
    m->blocks = next;
  }
  free(m->masks);
  free(m);
}

static int change(struct pgmap *m, struct slice key, struct pgmap_ver v, uint64_t view_max) {
  struct place p = search_fingers(m, key);
  int rc;
  if (p.found) {
    rc = entry_replace(m, &p, v, view_max);
  } else {
    struct pgmap_entry e = {.key = key.data, .klen = (uint32_t)key.size, .v = v};
    rc = entry_insert(m, &p, &e);
  }
  if (rc)
    return rc;
  finger_set(m, &p);
  m->changes++;
  return 0;
}

int pgmap_put(struct pgmap *m, struct slice key, struct slice value, uint64_t ord,
              uint64_t view_max) {
  struct pgmap_ver v = {.val = value.data, .vlen = (uint32_t)value.size, .ord = ord};
  return change(m, key, v, view_max);
}

int pgmap_delete(struct pgmap *m, struct slice key, uint64_t ord, uint64_t view_max) {
  struct pgmap_ver v = {.vlen = PGMAP_TOMBSTONE, .ord = ord};
  return change(m, key, v, view_max);
}

bool pgmap_erase(struct pgmap *m, struct slice key) {
  struct place p = search(m, key);
  if (!p.found)
    return false;
  struct chunk *c = m->row[p.chunk];
  struct pgmap_entry *e = &c->e[p.slot];
  c->gone -= e->v.vlen == VER_GONE;
  chain_trim(m, e->v.older, 0);
  c->n--;
  memmove(e, e + 1, (c->n - p.slot) * sizeof(*e));
  for (struct finger *f = m->fingers; f < m->fingers + FINGERS; f++)
    if (f->chunk == p.chunk && f->slot > p.slot)
      f->slot--;
  m->entries--;
  m->changes++;
  chunk_settle(m, p.chunk);
  return true;
}

/* --- masks ------------------------------------------------------------------------------------ */

static inline struct slice mask_begin(const struct mask *k) {
  return slice_make(k->begin, k->begin_len);
}
static inline struct slice mask_end(const struct mask *k) {
  return slice_make(k->end, k->end_len);
}

/* Is key before this end? */
static inline bool before(struct slice key, struct slice end) {
  return !end.data || slice_cmp(key, end) < 0;
}

/* The first mask that ends behind key: the one that holds it, or the next one. */
static size_t mask_find(const struct masks *ms, struct slice key) {
  size_t lo = 0, hi = ms ? ms->n : 0;
  while (lo < hi) {
    size_t mid = (lo + hi) / 2;
    if (before(key, mask_end(&ms->m[mid])))
      hi = mid;
    else
      lo = mid + 1;
  }
  return lo;
}

/* Room for the masks that [begin, end) adds: at most one before each that it meets, and one. */
static int mask_reserve(struct pgmap *m, struct slice begin, struct slice end) {
  struct masks *ms = m->masks;
  size_t n = ms ? ms->n : 0, had = ms ? ms->cap : 0, need = n + 1;
  for (size_t i = mask_find(ms, begin); i < n && before(mask_begin(&ms->m[i]), end); i++)
    need++;
  if (need <= had)
    return 0;
  size_t cap = had ? had * 2 : 2;
  if (cap < need)
    cap = need;
  ms = realloc(ms, sizeof(*ms) + cap * sizeof(ms->m[0]));
  if (!ms)
    return PGLOG_ENOMEM;
  if (!m->masks) {
    memset(ms, 0, sizeof(*ms));
    m->memory += sizeof(*ms);
  }
  ms->cap = cap;
  m->memory += (cap - had) * sizeof(ms->m[0]);
  m->masks = ms;
  return 0;
}

static void mask_insert(struct masks *ms, size_t i, struct slice begin, struct slice end,
                        uint64_t ord) {
  memmove(&ms->m[i + 1], &ms->m[i], (ms->n - i) * sizeof(ms->m[0]));
  ms->m[i] = (struct mask){begin.data, end.data, (uint32_t)begin.size, (uint32_t)end.size, ord};
  ms->n++;
}

static bool mask_touches(const struct mask *a, const struct mask *next) {
  return a->end && slice_eq(mask_end(a), mask_begin(next));
}

/* May two neighbours become one? Not if a view reads at an ordinal between theirs. */
static bool mask_joins(const struct mask *a, const struct mask *next, uint64_t view_max) {
  bool same = a->ord == next->ord || (!seen(view_max, a->ord) && !seen(view_max, next->ord));
  return same && mask_touches(a, next);
}

/* Join what can be joined among masks [lo, hi) and their neighbours. */
static void mask_join(struct masks *ms, size_t lo, size_t hi, uint64_t view_max) {
  while (lo > 0 && mask_joins(&ms->m[lo - 1], &ms->m[lo], view_max))
    lo--;
  while (hi < ms->n && mask_joins(&ms->m[hi - 1], &ms->m[hi], view_max))
    hi++;
  size_t w = lo;
  for (size_t i = lo + 1; i < hi; i++) {
    struct mask *a = &ms->m[w], *b = &ms->m[i];
    if (!mask_joins(a, b, view_max)) {
      ms->m[++w] = *b;
      continue;
    }
    a->end = b->end;
    a->end_len = b->end_len;
    if (a->ord < b->ord)
      a->ord = b->ord;
  }
  memmove(&ms->m[w + 1], &ms->m[hi], (ms->n - hi) * sizeof(ms->m[0]));
  ms->n -= hi - (w + 1);
}

/* Hide [begin, end) from `ord` on, where it is not hidden already. Room was reserved. */
static void mask_add(struct masks *ms, struct slice begin, struct slice end, uint64_t ord,
                     uint64_t view_max) {
  size_t lo = mask_find(ms, begin), i = lo;
  bool open = true; /* something of the range is left */
  for (; open && i < ms->n && before(mask_begin(&ms->m[i]), end); i++) {
    if (slice_cmp(begin, mask_begin(&ms->m[i])) < 0) {
      mask_insert(ms, i, begin, mask_begin(&ms->m[i]), ord);
      i++;
    }
    begin = mask_end(&ms->m[i]);
    open = begin.data && before(begin, end);
  }
  if (open)
    mask_insert(ms, i++, begin, end, ord);
  mask_join(ms, lo, i, view_max);
}

bool pgmap_masked(struct pgmap *m, struct slice key, uint64_t at) {
  struct masks *ms = m->masks;
  size_t i = mask_find(ms, key);
  return ms && i < ms->n && ms->m[i].ord <= at && slice_cmp(mask_begin(&ms->m[i]), key) <= 0;
}

bool pgmap_mask(struct pgmap *m, size_t i, uint64_t at, struct slice *begin, struct slice *end,
                bool *no_end) {
  struct masks *ms = m->masks;
  if (!ms)
    return false;
  bool go_on = ms->walk.changes == m->changes && ms->walk.at == at && ms->walk.i <= i;
  size_t pos = go_on ? ms->walk.pos : 0;
  for (size_t k = go_on ? ms->walk.i : 0;; k++) {
    while (pos < ms->n && ms->m[pos].ord > at)
      pos++;
    if (pos == ms->n)
      return false;
    size_t last = pos;
    while (last + 1 < ms->n && ms->m[last + 1].ord <= at &&
           mask_touches(&ms->m[last], &ms->m[last + 1]))
      last++;
    if (k == i) {
      *begin = mask_begin(&ms->m[pos]);
      *end = mask_end(&ms->m[last]);
      *no_end = !end->data;
      ms->walk.changes = m->changes;
      ms->walk.at = at;
      ms->walk.i = i;
      ms->walk.pos = pos;
      return true;
    }
    pos = last + 1;
  }
}

/* --- range delete ----------------------------------------------------------------------------- */

/* The entries of a range: from slot `from` of chunk `first` up to before slot `to` of chunk `last`.
 */
struct span {
  uint32_t first, last, from, to;
};

static struct span span_find(const struct pgmap *m, struct slice begin, struct slice end) {
  struct place p = search_fingers(m, begin);
  struct span s = {p.chunk, p.chunk, p.slot, p.slot};
  if (m->n == 0)
    return s;
  while (s.last + 1 < m->n &&
         before(slice_make(m->row[s.last + 1]->e[0].key, m->row[s.last + 1]->e[0].klen), end))
    s.last++;
  bool found;
  s.to = end.data ? chunk_lower_bound(m->row[s.last], end, &found) : m->row[s.last]->n;
  return s;
}

/* Nothing to do in a chunk whose entries are gone already, unless no view needs them any more. This
 * keeps trims of an ever longer range cheap under a long-lived view. */
static bool span_skips(const struct chunk *c, uint64_t view_max) {
  return view_max && c->gone == c->n;
}

/* How many versions hiding the span will take. */
static size_t span_versions(const struct pgmap *m, struct span s, uint64_t ord, uint64_t view_max) {
  size_t n = 0;
  for (uint32_t i = s.first; view_max && i < m->n && i <= s.last; i++) {
    const struct chunk *c = m->row[i];
    uint32_t to = i == s.last ? s.to : c->n;
    for (uint32_t j = i == s.first ? s.from : 0; j < to && !span_skips(c, view_max); j++)
      n += c->e[j].v.vlen != VER_GONE && ver_keep(&c->e[j].v, ord, view_max);
  }
  return n;
}

/* False: no view needs the entry, it can be removed. */
static bool entry_hide(struct pgmap *m, struct chunk *c, struct pgmap_entry *e, uint64_t ord,
                       uint64_t view_max) {
  if (e->v.vlen == VER_GONE) {
    e->v.older = chain_trim(m, e->v.older, view_max);
    c->gone -= !e->v.older;
    return e->v.older;
  }
  struct pgmap_ver *older = ver_push(m, &e->v, ord, view_max);
  e->v = (struct pgmap_ver){.vlen = VER_GONE, .ord = ord, .older = older};
  c->gone += older != NULL;
  return older;
}

/* Hide entries [from, to) of a chunk, and close the gaps. */
static void chunk_hide(struct pgmap *m, struct chunk *c, uint32_t from, uint32_t to, uint64_t ord,
                       uint64_t view_max) {
  if (span_skips(c, view_max))
    return;
  uint32_t w = from;
  for (uint32_t i = from; i < to && (view_max || m->n_older); i++)
    if (entry_hide(m, c, &c->e[i], ord, view_max))
      c->e[w++] = c->e[i];
  memmove(&c->e[w], &c->e[to], (c->n - to) * sizeof(c->e[0]));
  c->n -= (uint16_t)(to - w);
  m->entries -= to - w;
}

/* Fingers behind a span, after `chunks` chunks and, of its last chunk, `slots` entries went away.
 */
static void fingers_after_span(struct pgmap *m, struct span s, uint32_t chunks, uint32_t slots) {
  for (struct finger *f = m->fingers; f < m->fingers + FINGERS; f++) {
    if (f->chunk == NOWHERE || f->chunk < s.first)
      continue;
    if (f->chunk == s.last && f->slot >= s.to)
      f->slot -= slots;
    else if (f->chunk <= s.last && (f->chunk > s.first || f->slot >= s.from))
      f->chunk = NOWHERE;
    if (f->chunk != NOWHERE && f->chunk >= s.last)
      f->chunk -= chunks;
  }
}

static void span_hide(struct pgmap *m, struct span s, uint64_t ord, uint64_t view_max) {
  if (m->n == 0)
    return;
  uint32_t w = s.first, slots = m->row[s.last]->n;
  for (uint32_t i = s.first; i <= s.last; i++) {
    struct chunk *c = m->row[i];
    chunk_hide(m, c, i == s.first ? s.from : 0, i == s.last ? s.to : c->n, ord, view_max);
    if (i == s.last)
      slots -= c->n;
    if (c->n)
      m->row[w++] = c;
    else
      chunk_free(m, c);
  }
  memmove(&m->row[w], &m->row[s.last + 1], (m->n - (s.last + 1)) * sizeof(*m->row));
  uint32_t chunks = s.last + 1 - w;
  m->n -= chunks;
  fingers_after_span(m, s, chunks, slots);
  if (w > s.first)
    chunk_settle(m, w - 1);
  chunk_settle(m, s.first);
}

int pgmap_delete_range(struct pgmap *m, struct slice begin, struct slice end, uint64_t ord,
                       uint64_t view_max) {
  if (!before(begin, end))
    return 0;
  struct span s = span_find(m, begin, end);
  if (mask_reserve(m, begin, end) || ver_reserve(m, span_versions(m, s, ord, view_max)))
    return PGLOG_ENOMEM;
  span_hide(m, s, ord, view_max);
  mask_add(m->masks, begin, end, ord, view_max);
  m->changes++;
  return 0;
}

/* --- reading ---------------------------------------------------------------------------------- */

enum pgmap_found pgmap_get(struct pgmap *m, struct slice key, uint64_t at, struct slice *value) {
  struct place p = search(m, key);
  const struct pgmap_ver *v = p.found ? ver_at(&m->row[p.chunk]->e[p.slot], at) : NULL;
  if (!v)
    return pgmap_masked(m, key, at) ? PGMAP_DELETED : PGMAP_NONE;
  if (v->vlen == PGMAP_TOMBSTONE)
    return PGMAP_DELETED;
  *value = slice_make(v->val, v->vlen);
  return PGMAP_VALUE;
}

/* Stand on (chunk, slot) if its entry is visible. */
static bool cursor_stand(struct pgmap_cursor *c, size_t chunk, size_t slot) {
  const struct pgmap_entry *e = &c->m->row[chunk]->e[slot];
  const struct pgmap_ver *v = ver_at(e, c->at);
  if (!v)
    return false;
  c->chunk = chunk;
  c->slot = slot;
  c->changes = c->m->changes;
  c->key = slice_make(e->key, e->klen);
  c->deleted = v->vlen == PGMAP_TOMBSTONE;
  c->value = slice_make(v->val, c->deleted ? 0 : v->vlen);
  c->ord = v->ord;
  c->valid = true;
  return true;
}

/* A walk meets keys and values that were last looked at when they were written: ask for those of a later
 * entry while the caller is busy with this one. */
#define WALK_AHEAD 4u    /* entries */
#define WALK_VALUE 320u  /* bytes of a value: a log entry's, as a rule */
static inline void walk_prefetch(const struct chunk *c, size_t slot, bool values) {
  if (slot + WALK_AHEAD >= c->n)
    return;
  const struct pgmap_entry *e = &c->e[slot + WALK_AHEAD];
  __builtin_prefetch(e->key);
  uint32_t n = values && e->v.vlen < VER_GONE ? e->v.vlen : 0;
  for (uint32_t at = 0; at < WALK_VALUE && at < n; at += 64)
    __builtin_prefetch(e->v.val + at);
}

/* The first visible entry at or behind (chunk, slot). */
static void cursor_forward(struct pgmap_cursor *c, size_t chunk, size_t slot) {
  for (; chunk < c->m->n; chunk++, slot = 0)
    for (; slot < c->m->row[chunk]->n; slot++)
      if (cursor_stand(c, chunk, slot)) {
        walk_prefetch(c->m->row[chunk], slot, !c->keys_only);
        return;
      }
  c->valid = false;
}

/* The last visible entry before (chunk, slot). */
static void cursor_backward(struct pgmap_cursor *c, size_t chunk, size_t slot) {
  for (;;) {
    while (slot-- > 0)
      if (cursor_stand(c, chunk, slot))
        return;
    if (chunk == 0)
      break;
    slot = c->m->row[--chunk]->n;
  }
  c->valid = false;
}

void pgmap_cursor_init(struct pgmap_cursor *c, struct pgmap *m, uint64_t at) {
  memset(c, 0, sizeof(*c));
  c->m = m;
  c->at = at;
}

void pgmap_cursor_first(struct pgmap_cursor *c) {
  cursor_forward(c, 0, 0);
}

void pgmap_cursor_last(struct pgmap_cursor *c) {
  cursor_backward(c, c->m->n, 0);
}

void pgmap_cursor_seek(struct pgmap_cursor *c, struct slice key) {
  struct place p = search(c->m, key);
  cursor_forward(c, p.chunk, p.slot);
}

void pgmap_cursor_seek_for_prev(struct pgmap_cursor *c, struct slice key) {
  struct place p = search(c->m, key);
  cursor_backward(c, p.chunk, p.slot + (size_t)p.found);
}

/* The place of the cursor's key. */
static struct place cursor_place(const struct pgmap_cursor *c) {
  if (c->changes != c->m->changes)
    return search(c->m, c->key);
  return (struct place){.chunk = (uint32_t)c->chunk, .slot = (uint32_t)c->slot, .found = true};
}

void pgmap_cursor_next(struct pgmap_cursor *c) {
  struct place p = cursor_place(c);
  cursor_forward(c, p.chunk, p.slot + (size_t)p.found);
}

void pgmap_cursor_prev(struct pgmap_cursor *c) {
  struct place p = cursor_place(c);
  cursor_backward(c, p.chunk, p.slot);
}

size_t pgmap_entries(const struct pgmap *m) {
  return m->entries;
}
size_t pgmap_memory(const struct pgmap *m) {
  return m->memory;
}
uint64_t pgmap_changes(const struct pgmap *m) {
  return m->changes;
}
