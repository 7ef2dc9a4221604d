/* SPDX-License-Identifier: Apache-2.0
 *
 * args.h - values of options. Functions return 0, or exit code 2 after a message on stderr that names
 * the option, its limits and its value.
 */
#ifndef BENCH_ARGS_H
#define BENCH_ARGS_H

#include <stddef.h>
#include <stdint.h>

int bad_option(const char *name, const char *limit, const char *value);

/* A decimal number from min to max. */
int parse_number(const char *name, const char *text, uint64_t min, uint64_t max, uint64_t *out);

/* The same with commas between, at most `cap` of them; *n is how many. */
int parse_numbers(const char *name, const char *text, uint64_t min, uint64_t max, uint64_t *out,
                  size_t cap, size_t *n);

#endif
