/* SPDX-License-Identifier: Apache-2.0 */
#include "io.h"

#include <fcntl.h>
#include <libaio.h>
#include <linux/fs.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

/* One libaio context with room for `depth` requests, used by one thread at a time. */
struct lane {
  io_context_t ctx;
  struct lane *next;
  uint32_t n_idle;
  struct iocb *iocbs;
  struct iocb **idle; /* the first n_idle of them are not in flight */
  struct io_event *events;
};

struct file_io {
  int fd;
  bool is_device, direct;
  uint32_t depth;
  pthread_mutex_t lock; /* guards lanes */
  struct lane *lanes;   /* those no thread uses now */
};

/* ---------------------------------------------------------------------------------------------- */
/* Lanes                                                                                          */

static void lane_free(struct lane *l) {
  if (!l)
    return;
  if (l->ctx)
    io_destroy(l->ctx);
  free(l->iocbs);
  free(l->idle);
  free(l->events);
  free(l);
}

/* 0 or a negative errno. */
static int lane_new(uint32_t depth, struct lane **out) {
  struct lane *l = calloc(1, sizeof *l);
  int rc = -ENOMEM;
  if (!l)
    return rc;
  l->iocbs = calloc(depth, sizeof *l->iocbs);
  l->idle = calloc(depth, sizeof(struct iocb *));
  l->events = calloc(depth, sizeof *l->events);
  if (!l->iocbs || !l->idle || !l->events)
    goto err;
  for (uint32_t i = 0; i < depth; i++)
    l->idle[i] = &l->iocbs[i];
  l->n_idle = depth;
  rc = io_setup((int)depth, &l->ctx);
  if (rc < 0) {
    l->ctx = NULL;
    goto err;
  }
  *out = l;
  return 0;
err:
  lane_free(l);
  return rc;
}

/* A lane for this thread, or NULL when the system has no more contexts: the caller then does
 * without. */
static struct lane *lane_get(struct file_io *f) {
  pthread_mutex_lock(&f->lock);
  struct lane *l = f->lanes;
  if (l)
    f->lanes = l->next;
  pthread_mutex_unlock(&f->lock);
  if (!l && lane_new(f->depth, &l) != 0)
    return NULL;
  return l;
}

static void lane_put(struct file_io *f, struct lane *l) {
  pthread_mutex_lock(&f->lock);
  l->next = f->lanes;
  f->lanes = l;
  pthread_mutex_unlock(&f->lock);
}

/* ---------------------------------------------------------------------------------------------- */
/* Transfers                                                                                      */

/* The bytes of `r` from `done` on, without libaio. 0 or a negative errno. */
static int transfer(const struct file_io *f, const struct pglog_io_req *r, size_t done) {
  if (r->op != PGLOG_IO_READ && r->op != PGLOG_IO_WRITE)
    return -EINVAL;
  while (done < r->length) {
    uint8_t *p = (uint8_t *)r->buf + done;
    off_t at = (off_t)(r->offset + done);
    ssize_t k = r->op == PGLOG_IO_READ ? pread(f->fd, p, r->length - done, at)
                                       : pwrite(f->fd, p, r->length - done, at);
    if (k < 0 && errno == EINTR)
      continue;
    if (k <= 0)
      return k < 0 ? -errno : -EIO;
    done += (size_t)k;
  }
  return 0;
}

static void lane_finish(const struct file_io *f, struct lane *l, const struct io_event *e) {
  struct pglog_io_req *r = e->data;
  long res = (long)e->res;
  /* A short transfer is carried on by hand: it either ends well or gets the errno of what is wrong.
   */
  r->result = res < 0 ? (int)res : transfer(f, r, (size_t)res);
  l->idle[l->n_idle++] = e->obj;
}

/* Put up to as many requests in flight as there are idle iocbs. Returns how many were taken, or
 * io_submit's negative errno. */
static int lane_submit(const struct file_io *f, struct lane *l, struct pglog_io_req *reqs,
                       size_t n) {
  uint32_t k = n < l->n_idle ? (uint32_t)n : l->n_idle;
  struct iocb **batch = l->idle + (l->n_idle - k);
  if (k == 0)
    return 0;
  for (uint32_t i = 0; i < k; i++) {
    struct pglog_io_req *r = &reqs[i];
    if (r->op == PGLOG_IO_READ)
      io_prep_pread(batch[i], f->fd, r->buf, r->length, (long long)r->offset);
    else
      io_prep_pwrite(batch[i], f->fd, r->buf, r->length, (long long)r->offset);
    batch[i]->data = r;
  }
  int got = io_submit(l->ctx, (long)k, batch);
  if (got > 0) { /* the first `got` of the batch are in flight, the rest is idle */
    memmove(batch, batch + got, (k - (uint32_t)got) * sizeof *batch);
    l->n_idle -= (uint32_t)got;
  }
  return got;
}

/* False: the lane is of no more use. */
static bool lane_reap(const struct file_io *f, struct lane *l, bool all) {
  uint32_t flying = f->depth - l->n_idle;
  int got;
  do {
    got = io_getevents(l->ctx, all ? (long)flying : 1, (long)flying, l->events, NULL);
  } while (got == -EINTR);
  for (int i = 0; i < got; i++)
    lane_finish(f, l, &l->events[i]);
  return got >= 0;
}

/* Run all requests. False: the lane is of no more use (requests without an answer have -EIO). */
static bool lane_run(const struct file_io *f, struct lane *l, struct pglog_io_req *reqs, size_t n) {
  size_t next = 0;
  for (size_t i = 0; i < n; i++)
    reqs[i].result = -EIO;
  while (next < n || l->n_idle < f->depth) {
    int got = lane_submit(f, l, reqs + next, n - next);
    if (got > 0)
      next += (size_t)got;
    if (got == -EINTR)
      continue;
    if (l->n_idle < f->depth) {
      if (!lane_reap(f, l, next == n))
        return false;
    } else if (got <= 0) { /* refused although nothing is in flight: no waiting helps */
      reqs[next].result = transfer(f, &reqs[next], 0);
      next++;
    }
  }
  return true;
}

static int file_submit(void *arg, struct pglog_io_req *reqs, size_t n) {
  struct file_io *f = arg;
  /* One request alone: pread and pwrite are the cheaper way to wait for it. */
  struct lane *l = f->direct && n > 1 ? lane_get(f) : NULL;
  if (!l) {
    for (size_t i = 0; i < n; i++)
      reqs[i].result = transfer(f, &reqs[i], 0);
  } else if (lane_run(f, l, reqs, n)) {
    lane_put(f, l);
  } else {
    lane_free(l); /* io_destroy waits until the kernel has let go of the callers' buffers */
  }
  for (size_t i = 0; i < n; i++)
    if (reqs[i].result != 0)
      return reqs[i].result;
  return 0;
}

/* ---------------------------------------------------------------------------------------------- */
/* The other calls                                                                                */

static int file_sync(void *arg) {
  struct file_io *f = arg;
  int rc;
  do {
    rc = fdatasync(f->fd) ? -errno : 0;
  } while (rc == -EINTR);
  return rc;
}

static int64_t file_size(void *arg) {
  struct file_io *f = arg;
  uint64_t bytes;
  struct stat st;
  if (f->is_device)
    return ioctl(f->fd, BLKGETSIZE64, &bytes) ? -errno : (int64_t)bytes;
  return fstat(f->fd, &st) ? -errno : (int64_t)st.st_size;
}

static int file_grow(void *arg, uint64_t bytes) {
  struct file_io *f = arg;
  int64_t size = file_size(f);
  int rc;
  if (size < 0)
    return (int)size;
  if (bytes <= (uint64_t)size)
    return 0;
  if (f->is_device)
    return -ENOSPC;
  do {
    rc = fallocate(f->fd, 0, size, (off_t)bytes - size) ? -errno : 0;
  } while (rc == -EINTR);
  if (rc == -EOPNOTSUPP)
    return ftruncate(f->fd, (off_t)bytes) ? -errno : 0;
  if (rc != 0 && file_size(f) > size && ftruncate(f->fd, size) != 0)
    return -errno; /* a failed fallocate may have reserved a part: it could not be given back */
  return rc;
}

static int64_t file_allocated(void *arg) {
  struct file_io *f = arg;
  struct stat st;
  if (f->is_device)
    return file_size(f);
  return fstat(f->fd, &st) ? -errno : (int64_t)st.st_blocks * 512;
}

static void file_close(void *arg) {
  struct file_io *f = arg;
  for (struct lane *l = f->lanes, *next; l; l = next) {
    next = l->next;
    lane_free(l);
  }
  pthread_mutex_destroy(&f->lock);
  close(f->fd);
  free(f);
}

/* ---------------------------------------------------------------------------------------------- */
/* Opening                                                                                        */

static int busy(const char *path, struct pglog_error *err) {
  return error_set(err, PGLOG_EBUSY, "%s is open already, in another process or in this one", path);
}

static int failed(const char *path, const char *call, int e, struct pglog_error *err) {
  return error_set(err, PGLOG_EIO, "%s: %s: %s", path, call, strerror(e));
}

/* Open and lock; *fd and what *info says about the kind. *fd is left at -1 on failure. */
static int open_locked(const char *path, bool create, int *fd, struct io_file_info *info,
                       struct pglog_error *err) {
  struct stat before, st;
  info->exists = stat(path, &before) == 0;
  if (!info->exists && errno != ENOENT)
    return failed(path, "stat", errno, err);
  if (!info->exists && !create)
    return error_set(err, PGLOG_ENOTFOUND, "%s does not exist", path);
  info->is_device = info->exists && S_ISBLK(before.st_mode);
  if (info->exists && !info->is_device && !S_ISREG(before.st_mode))
    return error_set(err, PGLOG_EINVAL, "%s is neither a file nor a block device", path);
  *fd = open(path, O_RDWR | O_CLOEXEC | (create ? O_CREAT : 0) | (info->is_device ? O_EXCL : 0),
             0644);
  if (*fd < 0)
    return info->is_device && errno == EBUSY ? busy(path, err) : failed(path, "open", errno, err);
  int rc = 0;
  if (fstat(*fd, &st) != 0)
    rc = failed(path, "fstat", errno, err);
  else if (S_ISBLK(st.st_mode) != info->is_device)
    rc = error_set(err, PGLOG_EBUSY, "%s was replaced while it was being opened", path);
  else if (!info->is_device && flock(*fd, LOCK_EX | LOCK_NB) != 0)
    rc = errno == EWOULDBLOCK ? busy(path, err) : failed(path, "flock", errno, err);
  if (rc != 0) {
    close(*fd);
    *fd = -1;
  }
  return rc;
}

static int check_sector(const char *path, int fd, struct pglog_error *err) {
  int sector;
  if (ioctl(fd, BLKSSZGET, &sector) != 0)
    return failed(path, "BLKSSZGET", errno, err);
  if (sector > (int)PGLOG_BLOCK)
    return error_set(err, PGLOG_ENOTSUP, "%s has sectors of %d bytes; the limit is %u", path,
                     sector, PGLOG_BLOCK);
  return 0;
}

/* Turn on O_DIRECT and make the first lane, or note why not. */
static void go_direct(struct file_io *f, struct io_file_info *info) {
  int flags = fcntl(f->fd, F_GETFL);
  int rc;
  if (flags < 0 || fcntl(f->fd, F_SETFL, flags | O_DIRECT) != 0) {
    snprintf(info->why, sizeof info->why, "O_DIRECT is refused: %s", strerror(errno));
    return;
  }
  rc = lane_new(f->depth, &f->lanes);
  if (rc == 0) {
    f->direct = info->direct = true;
    return;
  }
  /* Without libaio one direct write waits for the one before it: the page cache is better. */
  snprintf(info->why, sizeof info->why, "io_setup for %u requests is refused: %s", f->depth,
           strerror(-rc));
  fcntl(f->fd, F_SETFL, flags);
}

int io_file_open(const char *path, bool create, uint32_t queue_depth, struct pglog_io *io,
                 struct io_file_info *info, struct pglog_error *err) {
  memset(info, 0, sizeof *info);
  struct file_io *f = calloc(1, sizeof *f);
  if (!f)
    return error_set(err, PGLOG_ENOMEM, "out of memory opening %s", path);
  f->fd = -1;
  int rc = open_locked(path, create, &f->fd, info, err);
  if (rc != 0)
    goto err;
  if (info->is_device && (rc = check_sector(path, f->fd, err)) != 0)
    goto err;
  f->is_device = info->is_device;
  f->depth = queue_depth ? queue_depth : 1;
  pthread_mutex_init(&f->lock, NULL);
  go_direct(f, info);
  *io = (struct pglog_io){.arg = f,
                          .submit = file_submit,
                          .sync = file_sync,
                          .size = file_size,
                          .grow = file_grow,
                          .allocated = file_allocated,
                          .close = file_close};
  return 0;
err:
  if (f->fd >= 0)
    close(f->fd);
  free(f);
  return rc;
}

/* ---------------------------------------------------------------------------------------------- */

static int one(const struct pglog_io *io, int op, uint64_t offset, void *buf, uint32_t length) {
  struct pglog_io_req r = {.op = op, .offset = offset, .length = length, .buf = buf};
  return io->submit(io->arg, &r, 1);
}

int io_read(const struct pglog_io *io, uint64_t offset, void *buf, uint32_t length) {
  return one(io, PGLOG_IO_READ, offset, buf, length);
}

int io_write(const struct pglog_io *io, uint64_t offset, const void *buf, uint32_t length) {
  return one(io, PGLOG_IO_WRITE, offset, (void *)buf, length);
}

void *io_alloc(size_t blocks) {
  return blocks > SIZE_MAX / PGLOG_BLOCK ? NULL : aligned_alloc(PGLOG_BLOCK, blocks * PGLOG_BLOCK);
}
