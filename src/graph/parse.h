/* parse.h - what parse.c (stages, operators, arguments), scan.c (words) and parse_hint.c share; no other file
 * includes it. */
#ifndef CVYI_PARSE_H
#define CVYI_PARSE_H

#include "graph.h"

typedef struct parser {
    cvy_graph *graph;
    const char *text; /* the whole of it: columns count from here */
    const char *at;   /* what comes next */
    int running;      /* the value that flows into the next operator; CVY_NONE: there is none yet */
    bool ended;       /* output(...) was read */
    cvy_dtype plain;  /* of declarations that name none */
} parser;

/* ---- characters ---- */

/* Not isdigit() and friends: those follow the locale of the program around us. */
static inline bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

size_t cvyi_name_length(const char *at); /* bytes of the name that begins here, 0 if none does */
bool cvyi_word_is(const char *at, size_t len, const char *word);
char cvyi_scan_space(parser *p);          /* goes past it; returns what comes then */
bool cvyi_scan_accept(parser *p, char c); /* goes past c, if it comes next after space */

/* ---- messages ---- */

enum { SEEN_BYTES = 48 };
/* What is at a position, for messages: 'foo', the end of the text, byte 0x80. */
void cvyi_describe(const char *at, char seen[SEEN_BYTES]);
/* Puts the column before the message of a call that failed. */
cvy_status cvyi_locate(const parser *p, const char *at, cvy_status st);
/* "column 9: expected a number, got 'foo'", for what comes next. */
cvy_status cvyi_expected(const parser *p, const char *what);

/* After the node of a stage was added, or refused with st: a refusal of it, or of a later one, gets a hint if
 * torch.nn's numbers may be the reason. `positional` attributes were given without a keyword. */
cvy_status cvyi_hinted(cvy_graph *g, const node_spec *s, int positional, cvy_status st);

/* ---- words ---- */

cvy_status cvyi_scan_name(parser *p, const char *what, char out[NAME_BYTES]); /* `what` it is, for the message */
cvy_status cvyi_scan_extents(parser *p, shape *s);     /* [2,3,4], or [] for one element without dimensions */
cvy_status cvyi_scan_dtype(parser *p, cvy_dtype *out); /* bf16 */
cvy_status cvyi_scan_number(parser *p, double *out);

#endif
