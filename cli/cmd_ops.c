/* cmd_ops.c - `convoy ops`: the operators. */
#include "cli.h"

int cmd_ops(const options *o)
{
    const char *signature;
    if (o->json) {
        for (int32_t i = 0; (signature = cvy_op_signature(i)); i++) {
            fputs(i ? ",\n " : "[", stdout);
            json_string(signature);
        }
        puts("]");
    } else {
        for (int32_t i = 0; (signature = cvy_op_signature(i)); i++) puts(signature);
    }
    return EXIT_FINE;
}
