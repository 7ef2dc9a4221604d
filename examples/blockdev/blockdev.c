/* SPDX-License-Identifier: Apache-2.0
 *
 * blockdev.c - an nbdkit plugin: a disk on osdcore, striped over objects of 4 MiB.
 *
 *   nbdkit -f ./nbdkit-osdcore-plugin.so dir=DIRECTORY size=10G
 *
 * Object "disk.<index, 16 hexadecimal digits>" has the bytes from index * 4 MiB on; a missing
 * object, and what is behind an object's end, are zeros. Object "geometry" has the size that the
 * disk was made with. Each NBD request becomes one operation for each object that it touches; they
 * run concurrently, and the request is answered when all are.
 *
 * Threads live in no process that was forked after they started, so the store is opened after
 * nbdkit has gone to the background. It then logs to syslog; with -f errors are on stderr.
 */
#define NBDKIT_API_VERSION 2
#include <errno.h>
#include <inttypes.h>
#include <nbdkit-plugin.h>
#include <osdcore/osd.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define THREAD_MODEL NBDKIT_THREAD_MODEL_PARALLEL

#define OBJECT_BYTES (4u << 20)
#define SECTOR 512u
#define SIZE_MAX_BYTES (1ull << 50)
#define PG_BITS 6 /* of a new store */
#define NAME_BYTES 32
#define GEOMETRY "geometry"

static const char *const modes[] = {[OSD_STORE_SPLIT] = "split", [OSD_STORE_ROCKSDB] = "rocksdb"};

static struct {
  char *dir;
  uint64_t size;
  int mode, queue;
  uint32_t shards, threads;
} conf = {.mode = OSD_STORE_SPLIT, .queue = OPQ_FAST, .shards = 4, .threads = 1};

static struct osd *store;

/* ---------------------------------------------------------------------------------------------- */
/* Parameters                                                                                     */

static int config_dir(const char *value) {
  free(conf.dir);
  conf.dir = nbdkit_absolute_path(value); /* nbdkit leaves the working directory */
  return conf.dir ? 0 : -1;
}

static int config_size(const char *value) {
  int64_t n = nbdkit_parse_size(value);
  if (n < SECTOR || n % SECTOR || (uint64_t)n > SIZE_MAX_BYTES) {
    nbdkit_error("size must be a multiple of %u from %u to %llu bytes, not \"%s\"", SECTOR, SECTOR,
                 SIZE_MAX_BYTES, value);
    return -1;
  }
  conf.size = (uint64_t)n;
  return 0;
}

static int config_mode(const char *value) {
  for (int i = 0; i < 2; i++)
    if (strcmp(value, modes[i]) == 0)
      return conf.mode = i, 0;
  nbdkit_error("mode must be split or rocksdb, not \"%s\"", value);
  return -1;
}

static int config_queue(const char *value) {
  for (int i = 0; i < OPQ_KINDS; i++)
    if (strcmp(value, opq_kind_str(i)) == 0)
      return conf.queue = i, 0;
  nbdkit_error("queue must be fast, sharded or single, not \"%s\"", value);
  return -1;
}

static int config_count(const char *key, const char *value, uint32_t max, uint32_t *out) {
  char *end;
  errno = 0;
  unsigned long n = strtoul(value, &end, 10);
  if (value[0] < '0' || value[0] > '9' || *end || errno || n < 1 || n > max) {
    nbdkit_error("%s must be a number from 1 to %" PRIu32 ", not \"%s\"", key, max, value);
    return -1;
  }
  *out = (uint32_t)n;
  return 0;
}

static int disk_config(const char *key, const char *value) {
  if (strcmp(key, "dir") == 0)
    return config_dir(value);
  if (strcmp(key, "size") == 0)
    return config_size(value);
  if (strcmp(key, "mode") == 0)
    return config_mode(value);
  if (strcmp(key, "queue") == 0)
    return config_queue(value);
  if (strcmp(key, "shards") == 0)
    return config_count(key, value, 1024, &conf.shards);
  if (strcmp(key, "threads") == 0)
    return config_count(key, value, 64, &conf.threads);
  nbdkit_error("unknown parameter %s=%s; there are dir, size, mode, queue, shards and threads", key,
               value);
  return -1;
}

static int disk_config_complete(void) {
  if (conf.dir && conf.size)
    return 0;
  nbdkit_error("parameter %s is missing", conf.dir ? "size=BYTES" : "dir=DIRECTORY");
  return -1;
}

#define CONFIG_HELP                                                              \
  "dir=DIRECTORY          (required) The store; made if missing.\n"              \
  "size=BYTES             (required) Size of the disk, as it was made.\n"        \
  "mode=split|rocksdb     Where PG logs are kept: by the plugin, or in RocksDB " \
  "(split).\n"                                                                   \
  "queue=fast|sharded|single  Op queue (fast).\n"                                \
  "shards=N               Shards of the op queue (4).\n"                         \
  "threads=N              Workers for each shard (1)."

/* ---------------------------------------------------------------------------------------------- */
/* Open and close                                                                                 */

/* The same disk as before? Or the first time: then it is what was asked for from now on. */
static int geometry_check(struct osd *o, struct pglog_error *err) {
  char text[96];
  uint64_t size;
  uint32_t object;
  size_t n = sizeof text - 1;
  int rc = osd_read(o, GEOMETRY, text, &n, 0, err);
  if (rc == PGLOG_ENOTFOUND) {
    int len = snprintf(text, sizeof text, "size=%" PRIu64 " object=%u\n", conf.size, OBJECT_BYTES);
    return osd_write_full(o, GEOMETRY, text, (size_t)len, err);
  }
  if (rc)
    return rc;
  text[n] = 0;
  err->code = PGLOG_EMISMATCH;
  if (sscanf(text, "size=%" SCNu64 " object=%" SCNu32, &size, &object) != 2)
    snprintf(err->text, sizeof err->text, "object " GEOMETRY " is \"%s\", not a geometry", text);
  else if (size != conf.size)
    snprintf(err->text, sizeof err->text,
             "size=%" PRIu64 ", but the disk was made with size=%" PRIu64, conf.size, size);
  else if (object != OBJECT_BYTES)
    snprintf(err->text, sizeof err->text,
             "objects have %u bytes, but the disk was made with %" PRIu32, OBJECT_BYTES, object);
  else
    err->code = 0;
  return err->code;
}

static void store_message(void *arg, const char *message) {
  (void)arg;
  nbdkit_error("%s", message);
}

static int disk_after_fork(void) {
  struct osd_config c = {.path = conf.dir,
                         .store = conf.mode,
                         .pg_bits = PG_BITS,
                         .queue = conf.queue,
                         .shards = conf.shards,
                         .threads = conf.threads,
                         .log = store_message};
  struct pglog_error err;
  int rc = osd_open(&store, &c, &err);
  if (rc == 0)
    rc = geometry_check(store, &err);
  if (rc == 0)
    return 0;
  nbdkit_error("dir=%s: %s", conf.dir, err.text);
  osd_close(store);
  store = NULL;
  return -1;
}

static void disk_cleanup(void) {
  osd_close(store);
  store = NULL;
}

static void disk_unload(void) {
  free(conf.dir);
}

static void *disk_open(int readonly) {
  (void)readonly;
  return NBDKIT_HANDLE_NOT_NEEDED;
}

/* ---------------------------------------------------------------------------------------------- */
/* Requests                                                                                       */

/* An NBD request; lives until all of its parts are answered. */
struct io {
  int op; /* OSD_READ, OSD_WRITE, or OSD_ZERO, which removes objects that become all zeros */
  pthread_mutex_t lock; /* of the fields below */
  pthread_cond_t answered;
  uint64_t parts;           /* submitted and not answered */
  struct pglog_error error; /* the first one */
};

/* What it does to one object. */
struct part {
  struct io *io;
  uint8_t *data; /* NULL: none */
  uint64_t length;
};

static void io_error(struct io *io, const struct pglog_error *err) {
  if (!io->error.code)
    io->error = *err;
}

static void part_read(const struct part *p, const struct osd_result *r) {
  if (r->length)
    memcpy(p->data, r->data, r->length);
  memset(p->data + r->length, 0, p->length - r->length);
}

static void part_done(void *arg, struct osd_result *r) {
  struct part *p = arg;
  struct io *io = p->io;
  /* A missing object is all zeros: so it reads, and there is nothing to zero. */
  bool ok = r->code == 0 || (r->code == PGLOG_ENOTFOUND && io->op != OSD_WRITE);
  if (ok && io->op == OSD_READ)
    part_read(p, r);
  free(r->data);
  r->error.code = r->code;
  pthread_mutex_lock(&io->lock);
  if (!ok)
    io_error(io, &r->error);
  if (--io->parts == 0)
    pthread_cond_signal(&io->answered);
  pthread_mutex_unlock(&io->lock);
}

/* How much of the disk is in an object; the last one may have less than the others. */
static uint64_t object_bytes(uint64_t index) {
  uint64_t left = conf.size - index * OBJECT_BYTES;
  return left < OBJECT_BYTES ? left : OBJECT_BYTES;
}

/* No request ids: NBD has none, and a client that lost its connection does not send again. */
static void part_submit(struct part *p, uint64_t at) {
  char name[NAME_BYTES];
  uint64_t index = at / OBJECT_BYTES;
  int n = snprintf(name, sizeof name, "disk.%016" PRIx64, index);
  struct io *io = p->io;
  struct osd_request r = {.op = io->op,
                          .name = name,
                          .name_size = (size_t)n,
                          .offset = at % OBJECT_BYTES,
                          .length = p->length,
                          .data = p->data,
                          .keep_data = true, /* the request waits for its parts */
                          .done = part_done,
                          .arg = p};
  if (io->op == OSD_ZERO && p->length == object_bytes(index))
    r.op = OSD_REMOVE;
  struct pglog_error err;
  pthread_mutex_lock(&io->lock);
  io->parts++; /* before the answer can come */
  pthread_mutex_unlock(&io->lock);
  int rc = osd_submit(store, &r, 0, &err);
  if (rc == 0)
    return;
  err.code = rc;
  pthread_mutex_lock(&io->lock);
  io->parts--;
  io_error(io, &err);
  pthread_mutex_unlock(&io->lock);
}

static void io_submit_parts(struct io *io, struct part *parts, uint8_t *data, uint64_t count,
                            uint64_t offset) {
  for (uint64_t at = 0; at < count; parts++) {
    uint64_t n = OBJECT_BYTES - (offset + at) % OBJECT_BYTES;
    if (n > count - at)
      n = count - at;
    *parts = (struct part){.io = io, .data = data ? data + at : NULL, .length = n};
    part_submit(parts, offset + at);
    at += n;
  }
}

/* NBD knows few of them. */
static int errno_of(int code) {
  switch (code) {
    case PGLOG_EINVAL:
      return EINVAL;
    case PGLOG_ENOMEM:
      return ENOMEM;
    case PGLOG_EFULL:
    case PGLOG_EBUSY: /* refused until a check point makes room */
      return ENOSPC;
    case PGLOG_ETOOBIG:
      return EOVERFLOW;
    default:
      return EIO;
  }
}

/* nbdkit has checked that the range is within the disk. */
static int disk_io(int op, void *data, uint64_t count, uint64_t offset) {
  if (!count)
    return 0;
  struct io io = {.op = op};
  uint64_t n = (offset + count - 1) / OBJECT_BYTES - offset / OBJECT_BYTES + 1;
  struct part *parts = calloc(n, sizeof *parts);
  if (!parts) {
    nbdkit_error("out of memory for a request of %" PRIu64 " bytes", count);
    nbdkit_set_error(ENOMEM);
    return -1;
  }
  pthread_mutex_init(&io.lock, NULL);
  pthread_cond_init(&io.answered, NULL);
  io_submit_parts(&io, parts, data, count, offset);
  pthread_mutex_lock(&io.lock);
  while (io.parts)
    pthread_cond_wait(&io.answered, &io.lock);
  pthread_mutex_unlock(&io.lock);
  pthread_cond_destroy(&io.answered);
  pthread_mutex_destroy(&io.lock);
  free(parts);
  if (!io.error.code)
    return 0;
  nbdkit_error("%s of %" PRIu64 " bytes at %" PRIu64 ": %s", osd_op_str(op), count, offset,
               io.error.text);
  nbdkit_set_error(errno_of(io.error.code));
  return -1;
}

static int disk_pread(void *handle, void *buf, uint32_t count, uint64_t offset, uint32_t flags) {
  (void)handle, (void)flags;
  return disk_io(OSD_READ, buf, count, offset);
}

/* With FUA or without: a write is answered when it is committed. */
static int disk_pwrite(void *handle, const void *buf, uint32_t count, uint64_t offset,
                       uint32_t flags) {
  (void)handle, (void)flags;
  return disk_io(OSD_WRITE, (void *)buf, count, offset);
}

/* What trim leaves reads as zeros, so zeroing is the same; NBDKIT_FLAG_MAY_TRIM asks for no more.
 */
static int disk_trim(void *handle, uint32_t count, uint64_t offset, uint32_t flags) {
  (void)handle, (void)flags;
  return disk_io(OSD_ZERO, NULL, count, offset);
}

/* Every write that was answered, on any connection, is on disk: nothing is left to be flushed.
 * Those still under way are waited for, which is more than NBD asks for. */
static int disk_flush(void *handle, uint32_t flags) {
  (void)handle, (void)flags;
  osd_drain(store);
  return 0;
}

/* ---------------------------------------------------------------------------------------------- */
/* What the disk is                                                                               */

static int64_t disk_get_size(void *handle) {
  (void)handle;
  return (int64_t)conf.size;
}

/* Smaller requests read the rest of their block; larger ones do not fit into an operation. */
static int disk_block_size(void *handle, uint32_t *minimum, uint32_t *preferred,
                           uint32_t *maximum) {
  (void)handle;
  *minimum = 1;
  *preferred = 4096;
  *maximum = OSD_IO_BYTES_MAX;
  return 0;
}

static int disk_can_fua(void *handle) {
  (void)handle;
  return NBDKIT_FUA_NATIVE;
}

static int disk_yes(void *handle) {
  (void)handle;
  return 1;
}

static int disk_no(void *handle) {
  (void)handle;
  return 0;
}

static struct nbdkit_plugin plugin = {
    .name = "osdcore",
    .longname = "a disk on osdcore",
    .description = "A disk striped over objects of osdcore, with PG logs",
    .config = disk_config,
    .config_complete = disk_config_complete,
    .config_help = CONFIG_HELP,
    .after_fork = disk_after_fork,
    .cleanup = disk_cleanup,
    .unload = disk_unload,
    .open = disk_open,
    .get_size = disk_get_size,
    .block_size = disk_block_size,
    .is_rotational = disk_no,
    .can_multi_conn = disk_yes, /* a flush on one connection concerns all, see there */
    .can_fua = disk_can_fua,
    .can_fast_zero = disk_yes, /* keys are deleted */
    .pread = disk_pread,
    .pwrite = disk_pwrite,
    .trim = disk_trim,
    .zero = disk_trim,
    .flush = disk_flush,
};

NBDKIT_REGISTER_PLUGIN(plugin)
