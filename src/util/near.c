/* near.c - the word that may have been meant. */
#include <string.h>
#include "util.h"

enum { LONGEST = 64 }; /* of words that are compared; a longer one is not a typing error */

/* How many letters to insert, drop, replace or swap with a neighbour: the optimal string alignment distance. */
static int distance(const char *a, size_t na, const char *b, size_t nb)
{
    int rows[3][LONGEST + 1], *last = rows[0], *before = rows[1], *row = rows[2];

    for (size_t j = 0; j <= nb; j++) last[j] = (int)j;
    for (size_t i = 1; i <= na; i++) {
        int *oldest = before;
        row[0] = (int)i;
        for (size_t j = 1; j <= nb; j++) {
            int least = last[j - 1] + (a[i - 1] != b[j - 1]);
            if (last[j] + 1 < least) least = last[j] + 1;
            if (row[j - 1] + 1 < least) least = row[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && before[j - 2] + 1 < least)
                least = before[j - 2] + 1;
            row[j] = least;
        }
        before = last;
        last = row;
        row = oldest;
    }
    return last[nb];
}

void cvyi_near_try(nearest *n, const char *candidate)
{
    const size_t length = strlen(candidate);
    int d;

    if (n->length > LONGEST || length > LONGEST) return;
    d = distance(n->word, n->length, candidate, length);
    /* A prefix of a word counts as that word. */
    if (n->length > 2 && n->length < length && !memcmp(n->word, candidate, n->length)) d = 1;
    if (d > 1 + (int)n->length / 4 || (n->best && d >= n->distance)) return;
    n->best = candidate;
    n->distance = d;
}
