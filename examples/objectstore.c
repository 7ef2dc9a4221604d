/* SPDX-License-Identifier: Apache-2.0
 *
 * objectstore.c - osdcore in a program: objects put and got, the process killed, and what is left.
 *
 * A child process opens a store, puts objects one after the other, each with a request id, and
 * tells through a pipe which are acknowledged. The parent kills it, opens the store itself, finds
 * every acknowledged object, and sends a request again whose answer the child already had.
 *
 * Usage: objectstore DIRECTORY (it must not exist yet)
 */
#include <errno.h>
#include <inttypes.h>
#include <osdcore/osd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define CLIENT 4711 /* who we are; a client numbers its requests: the tid */
#define KILL_AFTER 100u
#define TEXT_MAX 64u

static void die(const char *what, const char *why) {
  fprintf(stderr, "objectstore: %s: %s\n", what, why);
  exit(1);
}

static struct osd *store_open(const char *dir) {
  /* A new store gets 8 PGs; one that is there keeps its own. */
  struct osd_config config = {
      .path = dir, .store = OSD_STORE_SPLIT, .pg_bits = 3, .queue = OPQ_FAST};
  struct pglog_error err;
  struct osd *o;
  if (osd_open(&o, &config, &err))
    die(dir, err.text);
  return o;
}

/* Make an object exactly `text`; true if this request was answered before and not executed now. The
 * answer comes when the change is on disk. */
static bool put(struct osd *o, uint64_t tid, const char *name, const char *text) {
  struct osd_request request = {.op = OSD_WRITE_FULL,
                                .name = name,
                                .name_size = strlen(name),
                                .data = text,
                                .length = strlen(text),
                                .client = CLIENT,
                                .tid = tid,
                                .incarnation = 1};
  struct osd_result result;
  if (osd_do(o, &request, &result))
    die(name, result.error.text);
  return result.duplicate;
}

static void expect(struct osd *o, const char *name, const char *text) {
  char got[TEXT_MAX];
  size_t size = sizeof got - 1;
  struct pglog_error err;
  if (osd_read(o, name, got, &size, 0, &err))
    die(name, err.text);
  got[size] = 0;
  if (strcmp(got, text) != 0)
    die(name, "this is not what was put");
}

/* What request `tid` puts, and where. */
static void object_of(uint64_t tid, char name[TEXT_MAX], char text[TEXT_MAX]) {
  snprintf(name, TEXT_MAX, "object.%" PRIu64, tid);
  snprintf(text, TEXT_MAX, "put by request %" PRIu64, tid);
}

static void child(const char *dir, int out) {
  char name[TEXT_MAX], text[TEXT_MAX];
  struct osd *o = store_open(dir);
  for (uint64_t tid = 1;; tid++) {
    object_of(tid, name, text);
    if (put(o, tid, name, text))
      die(name, "a new request was taken for a duplicate");
    expect(o, name, text);
    if (dprintf(out, "%" PRIu64 "\n", tid) < 0)
      die("pipe", strerror(errno));
  }
}

/* Start the child, kill it in the middle of its work; returns the last request that it had an
 * answer for. Forked while this process has no threads yet, that is, no open store. */
static uint64_t run_and_kill(const char *dir) {
  int fd[2], status;
  uint64_t tid, acknowledged = 0;
  if (pipe(fd))
    die("pipe", strerror(errno));
  pid_t pid = fork();
  if (pid < 0)
    die("fork", strerror(errno));
  if (pid == 0) {
    close(fd[0]);
    child(dir, fd[1]);
  }
  close(fd[1]);
  FILE *in = fdopen(fd[0], "r");
  if (!in)
    die("pipe", strerror(errno));
  /* To the end of the pipe: what was acknowledged while the signal was on its way counts, too. */
  while (fscanf(in, "%" SCNu64, &tid) == 1) {
    acknowledged = tid;
    if (tid == KILL_AFTER && kill(pid, SIGKILL))
      die("kill", strerror(errno));
  }
  fclose(in);
  if (waitpid(pid, &status, 0) != pid)
    die("waitpid", strerror(errno));
  if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
    die("the child", "it ended by itself");
  return acknowledged;
}

int main(int argc, char **argv) {
  char name[TEXT_MAX], text[TEXT_MAX];
  if (argc != 2)
    return fprintf(stderr, "usage: objectstore DIRECTORY\n"), 2;
  if (mkdir(argv[1], 0777))
    die(argv[1], strerror(errno));

  uint64_t n = run_and_kill(argv[1]);
  printf("killed after request %" PRIu64 " was acknowledged\n", n);
  struct osd *o = store_open(argv[1]);
  for (uint64_t tid = 1; tid <= n; tid++) {
    object_of(tid, name, text);
    expect(o, name, text);
  }
  printf("opened again: all %" PRIu64 " acknowledged objects are there\n", n);

  /* As a client does that never got the answer. Other data, to see that it is not written: a
   * request is known by its id alone. */
  object_of(n, name, text);
  if (!put(o, n, name, "put by the same request again"))
    die(name, "the request was executed twice");
  expect(o, name, text);
  printf("request %" PRIu64 " sent again: a duplicate, not executed\n", n);

  /* A new request has a new number; n + 1 may have been under way in the child, n + 2 was not. */
  if (put(o, n + 2, name, "put by a new request"))
    die(name, "a new request was taken for a duplicate");
  expect(o, name, "put by a new request");
  printf("request %" PRIu64 ": executed\n", n + 2);
  osd_close(o);
  return 0;
}
