/* text.c: how the plan's values read in messages. Owns nothing. */
#include "plan/text.h"

#include <stdarg.h>
#include <stdio.h>

void slc_text_append(char *text, size_t size, size_t *used, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text + *used, size - *used, format, arguments);
    va_end(arguments);
    if (length > 0)
        *used = (size_t)length < size - *used ? *used + (size_t)length : size - 1;
}

void slc_shape_text(int ndim, const int64_t *shape, char text[SLC_SHAPE_TEXT])
{
    size_t used = 0;
    slc_text_append(text, SLC_SHAPE_TEXT, &used, "[");
    for (int d = 0; d < ndim && d < SLC_MAX_DIMS; d++)
        slc_text_append(text, SLC_SHAPE_TEXT, &used, "%s%lld", d > 0 ? ", " : "", (long long)shape[d]);
    slc_text_append(text, SLC_SHAPE_TEXT, &used, "]");
}

void slc_box_text(const slc_box *box, char text[SLC_RANGES_TEXT])
{
    size_t used = 0;
    slc_text_append(text, SLC_RANGES_TEXT, &used, "[");
    for (int d = 0; d < box->ndim; d++)
        slc_text_append(text, SLC_RANGES_TEXT, &used, "%s%lld:%lld", d > 0 ? ", " : "", (long long)box->low[d],
                        (long long)box->high[d]);
    slc_text_append(text, SLC_RANGES_TEXT, &used, "]");
}

/* As Python slices; the end of a stepped range is its last index plus one. Ranges here may be unchecked. */
void slc_ranges_text(int ndim, const slc_range *range, char text[SLC_RANGES_TEXT])
{
    size_t used = 0;
    slc_text_append(text, SLC_RANGES_TEXT, &used, "[");
    for (int d = 0; d < ndim && d < SLC_MAX_DIMS; d++) {
        const char *comma = d > 0 ? ", " : "";
        int64_t width = 0, end = 0;
        bool known =
            range[d].count > 0 && slc_multiply(range[d].count - 1, range[d].step, &width) && slc_add(width, range[d].start, &end);
        if (range[d].select)
            slc_text_append(text, SLC_RANGES_TEXT, &used, "%s%lld", comma, (long long)range[d].start);
        else if (range[d].count == SLC_TO_END && range[d].start == 0)
            slc_text_append(text, SLC_RANGES_TEXT, &used, "%s:", comma);
        else if (range[d].count == SLC_TO_END)
            slc_text_append(text, SLC_RANGES_TEXT, &used, "%s%lld:", comma, (long long)range[d].start);
        else if (known)
            slc_text_append(text, SLC_RANGES_TEXT, &used, "%s%lld:%lld", comma, (long long)range[d].start, (long long)end + 1);
        else
            slc_text_append(text, SLC_RANGES_TEXT, &used, "%s%lld (%lld of them)", comma, (long long)range[d].start,
                            (long long)range[d].count);
        if (!range[d].select && range[d].step != 1)
            slc_text_append(text, SLC_RANGES_TEXT, &used, ":%lld", (long long)range[d].step);
    }
    slc_text_append(text, SLC_RANGES_TEXT, &used, "]");
}

void slc_place_text(const slc_param *param, const char *where, char text[SLC_PLACE_TEXT])
{
    char shape[SLC_SHAPE_TEXT];
    size_t used = 0;
    slc_shape_text(param->ndim, param->shape, shape);
    if (where != NULL && where[0] != '\0')
        slc_text_append(text, SLC_PLACE_TEXT, &used, "%.400s: ", where);
    slc_text_append(text, SLC_PLACE_TEXT, &used, "parameter '%.500s' %s", param->name, shape);
}

void slc_layout_text(const slc_layout *layout, char *text, size_t size, size_t *used)
{
    const slc_mesh *mesh = layout->mesh;
    slc_text_append(text, size, used, "(");
    for (int i = 0; i < layout->nplacements; i++) {
        const slc_placement *placement = &layout->placement[i];
        const char *axis = mesh->axis_name[placement->axis];
        slc_text_append(text, size, used, "%s", i > 0 ? ", " : "");
        if (axis != NULL && axis[0] != '\0')
            slc_text_append(text, size, used, "%.60s", axis);
        else
            slc_text_append(text, size, used, "%d", placement->axis);
        if (placement->kind == SLC_PIN) {
            slc_text_append(text, size, used, "=%d", (int)placement->coordinate);
            continue;
        }
        slc_text_append(text, size, used, ":%d", placement->dim);
        if (placement->parts != mesh->axis[placement->axis])
            slc_text_append(text, size, used, "/%d", (int)placement->parts);
        if (placement->split == SLC_SPLIT_BALANCED)
            slc_text_append(text, size, used, " balanced");
        if (placement->split == SLC_SPLIT_CHUNK)
            slc_text_append(text, size, used, " chunk %lld", (long long)placement->chunk);
    }
    slc_text_append(text, size, used, ")");
    if (mesh->name != NULL && mesh->name[0] != '\0')
        slc_text_append(text, size, used, " of '%.100s'", mesh->name);
}
