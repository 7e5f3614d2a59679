/* text.h: shapes, ranges and parameters as text for messages. Each writes a terminated text that always fits. */
#ifndef SLC_PLAN_TEXT_H
#define SLC_PLAN_TEXT_H

#include "plan/layout.h"
#include "plan/plan.h"

#define SLC_SHAPE_TEXT 200
#define SLC_RANGES_TEXT 560
#define SLC_PLACE_TEXT 1200

/* "[4096, 14336]" */
void slc_shape_text(int ndim, const int64_t *shape, char text[SLC_SHAPE_TEXT]);
/* "[0:16, 8:24]" */
void slc_box_text(const slc_box *box, char text[SLC_RANGES_TEXT]);
/* As Python slices; the ranges need not be checked. */
void slc_ranges_text(int ndim, const slc_range *range, char text[SLC_RANGES_TEXT]);
/*
 * "llama.lua:12: parameter 'a.weight' [4096, 4096]": where a message about a parameter's destination starts; `where` may
 * be NULL or "". Long names are cut.
 */
void slc_place_text(const slc_param *param, const char *where, char text[SLC_PLACE_TEXT]);

/* What snprintf does, at *used of a text of `size` bytes, moving *used on to at most size - 1. */
void slc_text_append(char *text, size_t size, size_t *used, const char *format, ...) __attribute__((format(printf, 4, 5)));
/* "tp:0" for a shard of dim 0, "ep=3" for a pin, over 'mesh'. */
void slc_layout_text(const slc_layout *layout, char *text, size_t size, size_t *used);

#endif
