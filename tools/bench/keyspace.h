/* SPDX-License-Identifier: Apache-2.0
 *
 * keyspace.h - what a pg log key space must be, and its digest.
 *
 * The digest of a key space is, in all and for each PG (first 8 key bytes): the number of keys, the
 * sum of key and value bytes, and the SHA-256 of { u16 LE key length, u32 LE value length, key,
 * value } in key order.
 */
#ifndef BENCH_KEYSPACE_H
#define BENCH_KEYSPACE_H

#include "common.h"
#include "trace.h"

struct digest_part {
  uint8_t id[TRACE_PG_ID]; /* of the PG; zero for the total */
  uint64_t keys, bytes;
  char sha256[65]; /* lower case hex */
};

struct digest {
  struct digest_part total;
  struct digest_part *pgs; /* in key order */
  size_t n_pgs;
};

void digest_free(struct digest *d);
/* 0 if equal; else names the first part that differs. */
int digest_compare(const struct digest *want, const struct digest *have, struct fail *f);
/* Read the JSON form: {"keys":N,"bytes":N,"sha256":"..","pgs":{"<16 hex>":{the same},..}}. */
int digest_load(struct digest *d, const char *path, struct fail *f);

/* Builds a digest from entries in key order. */
struct digester;
struct digester *digester_new(void);
void digester_add(struct digester *g, struct bytes key, struct bytes value);
/* Finish, release `g`, and fill `d`. */
void digester_end(struct digester *g, struct digest *d);

/* The plain model: a map that applies the same operations. Values are borrowed from the trace or
 * key space file they came from; keys are copied, since a trace's keys move from pass to pass. */
struct model_entry {
  struct bytes key, value;
};

struct model {
  struct model_entry *entries; /* sorted by key once model_end() has run */
  size_t n;
  struct digest digest;
};

/* The key space that `before` (may be NULL) and `passes` passes of `t` leave. The trace is as
 * recorded again.
 */
void model_build(struct model *m, const struct keyspace_file *before, struct trace *t,
                 uint64_t passes);
void model_free(struct model *m);

/* Compare a key space, given entry by entry in key order, with the model, and take its digest. */
struct model_check {
  const struct model *model;
  size_t next; /* the model's entry that must come next */
  struct digester *digester;
  struct digest digest; /* after model_check_end() */
};

void model_check_begin(struct model_check *c, const struct model *m);
/* -1 at the first entry that is missing, foreign or different: names its key. */
int model_check_add(struct model_check *c, struct bytes key, struct bytes value, struct fail *f);
/* -1 if entries are missing at the end. c->digest is filled in any case; free it. */
int model_check_end(struct model_check *c, struct fail *f);

#endif
