/* SPDX-License-Identifier: Apache-2.0
 *
 * osd_error.h - fills a struct pglog_error.
 */
#ifndef OSDCORE_ERROR_H
#define OSDCORE_ERROR_H

#include "pglog/pglog.h"

/* Fill `e` (may be NULL) and return `code`. */
int osd_error(struct pglog_error *e, int code, const char *fmt, ...)
    __attribute__((cold, format(printf, 3, 4)));

#endif
