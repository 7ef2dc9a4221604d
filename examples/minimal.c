/* SPDX-License-Identifier: Apache-2.0
 *
 * minimal.c - the smallest program with the plugin in it: one batch with data and pg log, read it,
 * trim the log, close, open again. Usage: minimal DIRECTORY (it must not exist yet)
 */
#include <pglog/db.h>
#include <stdio.h>
#include <stdlib.h>

static void check(char *err) {
  if (err) {
    fprintf(stderr, "minimal: %s\n", err);
    exit(1);
  }
}

static void show(pglog_db_t *db, const char *when) {
  char *err = NULL;
  rocksdb_readoptions_t *ro = rocksdb_readoptions_create();
  pglog_iterator_t *it = pglog_db_create_iterator(db, ro);
  printf("%s:\n", when);
  for (pglog_iter_seek_to_first(it); pglog_iter_valid(it); pglog_iter_next(it)) {
    size_t kn, vn;
    const char *k = pglog_iter_key(it, &kn), *v = pglog_iter_value(it, &vn);
    printf("  %.*s = %.*s\n", (int)kn, k, (int)vn, v);
  }
  pglog_iter_get_error(it, &err);
  check(err);
  pglog_iter_destroy(it);
  rocksdb_readoptions_destroy(ro);
}

int main(int argc, char **argv) {
  char *err = NULL;
  rocksdb_options_t *options = rocksdb_options_create();
  rocksdb_options_set_create_if_missing(options, 1);
  if (argc != 2)
    return fprintf(stderr, "usage: minimal DIRECTORY\n"), 2;
  pglog_db_t *db = pglog_db_open(options, NULL, argv[1], &err);
  check(err);

  /* The object and its log entries, in PG 1.2a, are written together or not at all. */
  rocksdb_writebatch_t *batch = rocksdb_writebatch_create();
  rocksdb_writebatch_put(batch, "object/1.2a/rbd_data.7", 22, "some data", 9);
  rocksdb_writebatch_put(batch, "pglog/1.2a/0000000012.00000000000000000344", 42, "create", 6);
  rocksdb_writebatch_put(batch, "pglog/1.2a/0000000012.00000000000000000345", 42, "modify", 6);
  rocksdb_writebatch_put(batch, "pglog/1.2a/_info", 16, "last update 12.345", 18);
  rocksdb_writeoptions_t *wo = rocksdb_writeoptions_create();
  rocksdb_writeoptions_set_sync(wo, 1);
  pglog_db_write(db, wo, batch, &err);
  check(err);
  show(db, "written");

  pglog_db_delete(db, wo, "pglog/1.2a/0000000012.00000000000000000344", 42, &err); /* trim */
  check(err);
  pglog_db_close(db);
  db = pglog_db_open(options, NULL, argv[1], &err);
  check(err);
  show(db, "trimmed and opened again");

  pglog_db_close(db);
  rocksdb_writebatch_destroy(batch);
  rocksdb_writeoptions_destroy(wo);
  rocksdb_options_destroy(options);
  return 0;
}
