/* program_registers.c - the registers of a program. See program_build.h. */
#include "program_build.h"

static bool same_arg(const prog_arg *a, const prog_arg *b)
{
    return a->kind == b->kind && a->index == b->index;
}

void cvyi_mark_last(program *p)
{
    for (int k = 0; k < p->n_instrs; k++) {
        const prog_arg *dst = &p->instrs[k].dst;
        bool later = same_arg(&p->sink_arg, dst);
        for (int j = k + 1; j < p->n_instrs; j++) {
            const instr *i = &p->instrs[j];
            later |= same_arg(&i->a, dst) || same_arg(&i->b, dst) || same_arg(&i->dst, dst);
        }
        p->instrs[k].last = dst->kind == ARG_MEM && !later;
    }
}

/* While building, every value has its own register; here values with disjoint lifetimes share them. */
void cvyi_share_registers(program *p)
{
    int end[PROG_INSTRS + PROG_OPERANDS], at[PROG_INSTRS + PROG_OPERANDS], used = 0;
    int busy[PROG_INSTRS + PROG_OPERANDS];

    for (int r = 0; r < p->n_regs; r++) end[r] = -1, at[r] = -1;
    for (int k = 0; k < p->n_instrs; k++) {
        const prog_arg *args[] = {&p->instrs[k].a, &p->instrs[k].b, &p->instrs[k].dst};
        for (int a = 0; a < 3; a++) {
            if (args[a]->kind == ARG_REG) end[args[a]->index] = k;
            /* The stand-in of a written operand lives to the end: it is copied out after the last instruction. */
            if (args[a]->kind == ARG_MEM && p->operands[args[a]->index].reg >= 0)
                end[p->operands[args[a]->index].reg] = p->n_instrs;
        }
    }
    if (p->sink_arg.kind == ARG_REG) end[p->sink_arg.index] = p->n_instrs;
    /* A value read through a register is there before the first instruction, until the last. */
    for (int o = 0; o < p->n_operands; o++) {
        if (p->operands[o].written || p->operands[o].reg < 0) continue;
        at[p->operands[o].reg] = used;
        busy[used++] = p->n_instrs;
    }
    for (int k = 0; k < p->n_instrs; k++) {
        const prog_arg *dst = &p->instrs[k].dst;
        const int r = dst->kind == ARG_REG ? dst->index : p->operands[dst->index].reg;
        int slot = 0;
        if (at[r] >= 0) continue;
        while (slot < used && busy[slot] > k) slot++;
        if (slot == used) used++;
        busy[slot] = end[r] > k ? end[r] : k + 1;
        at[r] = slot;
    }
    for (int k = 0; k < p->n_instrs; k++) {
        prog_arg *args[] = {&p->instrs[k].a, &p->instrs[k].b, &p->instrs[k].dst};
        for (int a = 0; a < 3; a++)
            if (args[a]->kind == ARG_REG) args[a]->index = at[args[a]->index];
    }
    for (int o = 0; o < p->n_operands; o++)
        if (p->operands[o].reg >= 0) p->operands[o].reg = at[p->operands[o].reg];
    if (p->sink_arg.kind == ARG_REG) p->sink_arg.index = at[p->sink_arg.index];
    p->n_regs = used;
}
