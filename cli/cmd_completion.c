/* cmd_completion.c - `convoy completion SHELL`: a script for bash or zsh, made of the tables of commands and
 * options. */
#include <string.h>
#include "cli.h"

static void print_commands(void)
{
    for (int i = 0; command_at(i); i++) printf(" %s", command_at(i)->name);
    for (int i = 0; python_commands[i].name; i++) printf(" %s", python_commands[i].name);
}

static void print_words(const char *words)
{
    for (; *words; words++) putchar(*words == '|' ? ' ' : *words);
}

/* case "$previous" of options that take one of some words. */
static void print_values(const char *indent, const char *before, const char *after)
{
    const char *name, *value;
    for (int at = 0; options_each(~0u, &at, &name, &value);) {
        if (!value || !*value) continue;
        printf("%s%s) %s", indent, name, before);
        print_words(value);
        printf("%s ;;\n", after);
    }
}

/* What a command takes instead of a chain; "": nothing. */
static const char *arguments_of(const command_row *command)
{
    return command->bit == CMD_CACHE ? "list verify clear size" : command->bit == CMD_COMPLETION ? "bash zsh" : "";
}

/* dashed: whether the word begins with a dash, in the shell's language. The Python package's commands take files.
 */
static void print_options(const char *indent, const char *dashed, const char *before, const char *after)
{
    const char *name, *value;
    for (int i = 0; command_at(i); i++) {
        const command_row *c = command_at(i);
        printf("%s%s) %s%s", indent, c->name, before, arguments_of(c));
        for (int at = 0; options_each(c->bit, &at, &name, &value);) printf(" %s", name);
        if (c->python) printf(" %s", c->python);
        printf("%s ;;\n", after);
    }
    for (const python_command *c = python_commands; c->name; c++)
        printf("%s%s) %s && %s%s%s ;;\n", indent, c->name, dashed, before, c->options, after);
}

static void print_bash(void)
{
    puts("# bash completion of convoy: eval \"$(convoy completion bash)\"");
    puts("_convoy()\n{");
    puts("    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} words=");
    puts("    if [ \"$COMP_CWORD\" -eq 1 ]; then");
    fputs("        words=\"--help --version", stdout);
    print_commands();
    puts("\"\n    else\n        case \"$before\" in");
    print_values("            ", "words=\"", "\"");
    puts("            *) case \"${COMP_WORDS[1]}\" in");
    print_options("                ", "[[ $word == -* ]]", "words=\"", "\"");
    puts("            esac ;;\n        esac\n    fi");
    puts("    COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))");
    puts("}\ncomplete -o default -F _convoy convoy");
}

static void print_zsh(void)
{
    puts("#compdef convoy\n# zsh completion of convoy: save as _convoy in a folder of $fpath");
    puts("local -a words_\nlocal before=${words[CURRENT-1]}");
    fputs("if (( CURRENT == 2 )); then\n    words_=(--help --version", stdout);
    print_commands();
    puts(")\nelse\n    case \"$before\" in");
    print_values("        ", "words_=(", ")");
    puts("        *) case \"${words[2]}\" in");
    print_options("            ", "[[ $PREFIX == -* ]]", "words_=(", ")");
    puts("        esac ;;\n    esac\nfi");
    puts("compadd -- $words_ || _files");
}

int cmd_completion(const options *o)
{
    const char *shell = o->chain ? o->chain : "";
    if (!*shell) return cli_error("completion needs a shell: bash or zsh");
    if (strcmp(shell, "bash") && strcmp(shell, "zsh"))
        return cli_error("completion takes bash or zsh, not '%s'", shell);
    (*shell == 'b' ? print_bash : print_zsh)();
    return EXIT_FINE;
}
