/* SPDX-License-Identifier: Apache-2.0 */
#include "handoff_svg.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#define SHARED "set grid\nset key outside right center\n" /* by all plots */
#define LATENCY_MIN_US 0.001                              /* there is no 0 on a logarithmic axis */

static const char *const colors[HANDOFF_WHATS] = {
    [HANDOFF_SINGLE] = "#888888", [HANDOFF_SHARDED] = "#d95f02", [HANDOFF_FAST] = "#1b9e77",
    [HANDOFF_INLINE] = "#7570b3", [HANDOFF_FUTEX] = "#e7298a",
};

static const struct {
  enum handoff_metric metric;
  const char *title;
  bool pipeline;
} threads[] = {
    {H_CLIENT_CPU, "a client", false},        {H_WORKER_CPU, "a worker", false},
    {H_COMMITTER_CPU, "committer", true},     {H_ROCKSDB_CPU, "RocksDB", true},
    {H_CHECKPOINT_CPU, "check points", true}, {H_OTHER_CPU, "other", true},
};

/* ---------------------------------------------------------------------------------------------- */
/* gnuplot                                                                                        */

/* Run it; it reads `in`, called `name`, and writes `out`. */
static int gnuplot_run(char *arg, const char *name, int in, int out, struct fail *f) {
  char *argv[] = {"gnuplot", arg, NULL};
  posix_spawn_file_actions_t a;
  pid_t pid;
  int status;
  posix_spawn_file_actions_init(&a);
  posix_spawn_file_actions_adddup2(&a, in, 0);
  posix_spawn_file_actions_adddup2(&a, out, 1);
  int rc = posix_spawnp(&pid, argv[0], &a, NULL, argv, environ);
  posix_spawn_file_actions_destroy(&a);
  if (rc == ENOENT)
    return fail_set(f, "--svg needs gnuplot, which is not found; Debian's package is gnuplot-nox");
  if (rc != 0)
    return fail_set(f, "gnuplot cannot be started: %s", strerror(rc));
  while (waitpid(pid, &status, 0) < 0)
    if (errno != EINTR)
      return fail_set(f, "gnuplot: %s", strerror(errno));
  if (status != 0)
    return fail_set(f, "gnuplot failed on %.900s, %s %d", name,
                    WIFEXITED(status) ? "exit code" : "signal",
                    WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
  return 0;
}

static int gnuplot_files(char *arg, const char *in_path, const char *out_path, struct fail *f) {
  int in = open(in_path, O_RDONLY | O_CLOEXEC);
  if (in < 0)
    return fail_set(f, "%s: %s", in_path, strerror(errno));
  int out = open(out_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  int rc = out < 0 ? fail_set(f, "%s: %s", out_path, strerror(errno)) : 0;
  if (rc == 0)
    rc = gnuplot_run(arg, in_path, in, out, f);
  if (out >= 0)
    close(out);
  close(in);
  return rc;
}

static void input_path(const char *file, char *out, size_t cap) {
  snprintf(out, cap, "%s.gnuplot", file);
}

int handoff_svg_check(const char *file, struct fail *f) {
  char path[SVG_PATH_MAX + 16];
  if (gnuplot_files("--version", "/dev/null", "/dev/null", f) != 0)
    return -1;
  input_path(file, path, sizeof(path));
  FILE *g = fopen(path, "a");
  if (!g)
    return fail_set(f, "--svg: %.900s: %s", path, strerror(errno));
  fclose(g);
  return 0;
}

/* ---------------------------------------------------------------------------------------------- */
/* Its input: data                                                                                */

static void latency_data(FILE *g, const struct handoff_outcome *o) {
  for (size_t what = 0; what < HANDOFF_WHATS; what++) {
    if (!o->has[what])
      continue;
    fprintf(g, "$latency_%u_%s << EOD\n", o->load.clients, handoff_names[what]);
    for (size_t i = 0; i < HANDOFF_QUANTILES; i++) {
      double us = o->r[what].q[i];
      fprintf(g, "%.6g %.6g\n", handoff_tail(i), us < LATENCY_MIN_US ? LATENCY_MIN_US : us);
    }
    fprintf(g, "EOD\n");
  }
}

/* A column for each queue, NaN where it was not run. */
static void row(FILE *g, const struct handoff_outcome *o, enum handoff_metric metric,
                double scale) {
  for (size_t what = 0; what < HANDOFF_WHATS; what++)
    if (o->has[what])
      fprintf(g, " %.6g", o->r[what].m[metric] * scale);
    else
      fprintf(g, " NaN");
  fprintf(g, "\n");
}

static void data(FILE *g, const struct handoff_outcome *o, size_t n) {
  latency_data(g, &o[0]);
  if (n > 1)
    latency_data(g, &o[n - 1]);
  fprintf(g, "$rate << EOD\n");
  for (size_t i = 0; i < n; i++) {
    fprintf(g, "%u", o[i].load.clients);
    row(g, &o[i], H_MAX_RATE, 1);
  }
  fprintf(g, "EOD\n$cpu << EOD\n");
  for (size_t i = 0; i < sizeof(threads) / sizeof(threads[0]); i++)
    if (o->load.db || !threads[i].pipeline) {
      fprintf(g, "\"%s\"", threads[i].title);
      row(g, &o[n - 1], threads[i].metric, 100);
    }
  fprintf(g, "EOD\n");
}

/* ---------------------------------------------------------------------------------------------- */
/* Its input: plots                                                                               */

static const char *plural(uint32_t n) {
  return n == 1 ? "" : "s";
}

static const char *latency_curves(FILE *g, const struct handoff_outcome *o, int dash,
                                  const char *sep) {
  for (size_t what = 0; what < HANDOFF_WHATS; what++) {
    if (!o->has[what])
      continue;
    fprintf(g, "%s $latency_%u_%s using 1:2 with lines lw 2 dt %d", sep, o->load.clients,
            handoff_names[what], dash);
    fprintf(g, " lc rgb '%s' title '%s, %u client%s'", colors[what], handoff_names[what],
            o->load.clients, plural(o->load.clients));
    sep = ",";
  }
  return sep;
}

static void latency_plot(FILE *g, const struct handoff_plan *p, const struct handoff_outcome *o,
                         size_t n) {
  fprintf(g, "set title 'From submit to a worker, ");
  if (p->share > 0)
    fprintf(g, "at %g of the rate that sharded keeps up with'\n", p->share);
  else if (p->load.gap_us > 0)
    fprintf(g, "an operation each %g us'\n", p->load.gap_us);
  else
    fprintf(g, "operations as fast as they can'\n");
  /* Labels of tics are formats, to gnuplot. */
  fputs("set logscale xy\n"
        "set xrange [1:0.0001]\n"
        "set xtics ('min' 1, '50 %%' 0.5, '90 %%' 0.1, '99 %%' 0.01, '99.9 %%' 0.001, "
        "'99.99 %%' 0.0001)\n"
        "set xlabel 'share of operations that took no longer'\n"
        "set ylabel 'us'\n"
        "plot",
        g);
  const char *sep = latency_curves(g, &o[0], 1, "");
  if (n > 1)
    latency_curves(g, &o[n - 1], 2, sep);
  fprintf(g, "\n");
}

static bool has_any(const struct handoff_outcome *o, size_t n, size_t what) {
  for (size_t i = 0; i < n; i++)
    if (o[i].has[what])
      return true;
  return false;
}

/* The column of each queue that was run. */
static void by_queue(FILE *g, const struct handoff_outcome *o, size_t n, const char *before,
                     const char *behind) {
  const char *sep = "";
  for (size_t what = 0; what < HANDOFF_WHATS; what++)
    if (has_any(o, n, what)) {
      fprintf(g, "%s %s%zu%s lc rgb '%s' title '%s'", sep, before, what + 2, behind, colors[what],
              handoff_names[what]);
      sep = ",";
    }
  fprintf(g, "\n");
}

static void rate_plot(FILE *g, const struct handoff_outcome *o, size_t n) {
  const char *sep = "";
  uint32_t most = 0;
  fprintf(g, "set title 'Operations per second, as fast as the clients can'\n"
             "set xtics (");
  for (size_t i = 0; i < n; i++) {
    fprintf(g, "%s%u", sep, o[i].load.clients);
    most = o[i].load.clients > most ? o[i].load.clients : most;
    sep = ", ";
  }
  fprintf(g,
          ")\n"
          "set xlabel 'clients'\n"
          "set xrange [0:%u]\n"
          "set yrange [0:*]\n"
          "set format y '%%.1s %%c'\n"
          "plot",
          most + 1);
  by_queue(g, o, n, "$rate using 1:", " with linespoints lw 2 pt 7 ps 0.6");
}

static void cpu_plot(FILE *g, const struct handoff_outcome *o) {
  fprintf(g,
          "set title 'CPU by thread, %u client%s'\n"
          "set ylabel '%% of a processor'\n"
          "set yrange [0:*]\n"
          "set style histogram clustered gap 1\n"
          "set style fill solid 0.9 noborder\n"
          "plot",
          o->load.clients, plural(o->load.clients));
  by_queue(g, o, 1, "$cpu using ", ":xtic(1) with histograms");
}

static void plots(FILE *g, const struct handoff_plan *p, const struct handoff_outcome *o,
                  size_t n) {
  fprintf(g,
          "set terminal svg size 1000,1300 noenhanced background '#ffffff' font 'sans,13'\n"
          "set multiplot layout 3,1 title '%s'\n" SHARED,
          o->load.db ? "4K WriteFull through osdcore" : "The op queue alone, empty operations");
  latency_plot(g, p, o, n);
  fprintf(g, "reset\n" SHARED);
  rate_plot(g, o, n);
  fprintf(g, "reset\n" SHARED);
  cpu_plot(g, &o[n - 1]);
  fprintf(g, "unset multiplot\n");
}

int handoff_svg(const char *file, const struct handoff_plan *p, const struct handoff_outcome *o,
                size_t n, struct fail *f) {
  char path[SVG_PATH_MAX + 16];
  input_path(file, path, sizeof(path));
  FILE *g = fopen(path, "w");
  if (!g)
    return fail_set(f, "%.900s: %s", path, strerror(errno));
  fprintf(g, "# gnuplot < this > an SVG file\n");
  data(g, o, n);
  plots(g, p, o, n);
  bool bad = ferror(g);
  if (fclose(g) != 0 || bad)
    return fail_set(f, "%.900s: %s", path, strerror(errno));
  return gnuplot_files("-", path, file, f);
}
