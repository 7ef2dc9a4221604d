/* SPDX-License-Identifier: Apache-2.0
 *
 * io.h - the plugin's own implementation of struct pglog_io: libaio with O_DIRECT on a file or a
 * block device; buffered pread/pwrite where O_DIRECT or io_submit is refused (tmpfs).
 */
#ifndef PGLOG_IO_H
#define PGLOG_IO_H

#include "util.h"

#ifdef __cplusplus
extern "C" {
#endif

struct io_file_info {
  bool exists;    /* was there before this open */
  bool is_device; /* a block device: its size is fixed */
  bool direct;    /* O_DIRECT is in use; otherwise buffered, for the reason in `why` */
  char why[160];
};

/* Open `path` (created, mode 0644, if `create` and absent; PGLOG_ENOTFOUND if absent otherwise)
 * with an exclusive lock (flock on a file, O_EXCL on a device), so that no second process can open
 * it: PGLOG_EBUSY. PGLOG_EINVAL if it is neither a file nor a block device. At most `queue_depth`
 * requests are in flight per submit call; a longer batch is taken in a moving window. A request
 * that reaches beyond the end is -EIO when it reads; a write must be preceded by grow. A failed
 * grow leaves the size as it was. The file is closed on exec. The caller syncs the directory of a
 * new file. On success *io is filled in; release it with io->close(io->arg), which also gives back
 * the lock. On failure nothing stays open. PGLOG_EIO names the path and errno. */
int io_file_open(const char *path, bool create, uint32_t queue_depth, struct pglog_io *io,
                 struct io_file_info *info, struct pglog_error *err);

/* Helpers over any pglog_io: one contiguous transfer. `buf` aligned to PGLOG_BLOCK. 0 or -errno. */
int io_read(const struct pglog_io *io, uint64_t offset, void *buf, uint32_t length);
int io_write(const struct pglog_io *io, uint64_t offset, const void *buf, uint32_t length);

/* Aligned memory for transfers; free() it. NULL when out of memory. */
void *io_alloc(size_t blocks);

#ifdef __cplusplus
}
#endif
#endif
