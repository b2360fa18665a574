/* text_set.c - texts of an arena, each of them once: a table with open addressing, at most half full. */
#include <string.h>
#include "util.h"

/* The slot of a text: where its number is, or where it would go. */
static int *find_slot(const text_set *set, const char *source)
{
    size_t at = (size_t)cvyi_hash(CVYI_HASH_START, source, strlen(source)) & (set->cap - 1);
    while (set->slots[at] && strcmp(set->texts[set->slots[at] - 1], source) != 0) at = (at + 1) & (set->cap - 1);
    return &set->slots[at];
}

/* Old tables stay in the arena: together they are at most as large as the new one. */
static bool reserve(text_set *set, arena *a)
{
    text_set grown = {.n = set->n, .cap = set->cap ? 2 * set->cap : 64}; /* a power of 2 */

    if (2 * (size_t)(set->n + 1) <= set->cap) return true;
    grown.slots = cvyi_arena_alloc(a, grown.cap, sizeof *grown.slots);
    grown.texts = cvyi_arena_alloc(a, grown.cap / 2, sizeof *grown.texts);
    if (!grown.slots || !grown.texts) return false;
    for (int i = 0; i < set->n; i++) {
        grown.texts[i] = set->texts[i];
        *find_slot(&grown, set->texts[i]) = i + 1;
    }
    *set = grown;
    return true;
}

int cvyi_text_set_add(text_set *set, arena *a, const char *source)
{
    int *slot;
    char *copy;

    if (!reserve(set, a)) return -1;
    slot = find_slot(set, source);
    if (*slot) return *slot - 1;
    copy = cvyi_arena_alloc(a, strlen(source) + 1, 1);
    if (!copy) return -1;
    set->texts[set->n++] = strcpy(copy, source);
    *slot = set->n;
    return set->n - 1;
}
