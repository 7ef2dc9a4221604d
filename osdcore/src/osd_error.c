/* SPDX-License-Identifier: Apache-2.0 */
#include "osd_error.h"

#include <stdarg.h>
#include <stdio.h>

int osd_error(struct pglog_error *e, int code, const char *fmt, ...) {
  if (!e)
    return code;
  va_list ap;
  va_start(ap, fmt);
  e->code = code;
  vsnprintf(e->text, sizeof e->text, fmt, ap);
  va_end(ap);
  return code;
}
