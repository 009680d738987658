/* Rows as text: contract/README.md says what each part means. Every language has this parser. */
#ifndef SCRIPT_H
#define SCRIPT_H

#include <ctype.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <time.h>

#include "check.h"

/* A wait that takes this long has failed. */
#define BOUND_MS 60000

/* A number for printf. */
#define U(number) ((unsigned long long)(number))

/* A block of memory, before its bytes. */
union block {
    union block *before;
    max_align_t alignment;
};

/* A string that grows. */
struct text {
    char *bytes;
    size_t length, room;
};

struct lines {
    char **at;
    size_t count, room;
};

/* A step on its way: its words, the next of them, what it has printed, and where to go when it is no step. */
struct step {
    struct core *core;
    struct lines words;
    size_t at;
    struct text line;
    struct lines printed;
    watchcore_error error; /* of the last call that was refused */
    char fault[200];
    jmp_buf bad;
};

/* Runs a step: the words of a cache are in rows.c. */
static void run_words(struct step *step);

static union block *blocks;
static pthread_mutex_t blocks_lock = PTHREAD_MUTEX_INITIALIZER;

/* Memory that is freed with the row (free_row), so that nobody else frees any; its first bytes are those of `old`. From any
   thread. */
static void *room_for(const void *old, size_t length, size_t bytes)
{
    union block *block = calloc(1, sizeof(*block) + bytes);
    if (block == NULL) {
        perror("calloc");
        exit(2);
    }
    if (length > 0) {
        memcpy(block + 1, old, length);
    }
    pthread_mutex_lock(&blocks_lock);
    block->before = blocks;
    blocks = block;
    pthread_mutex_unlock(&blocks_lock);
    return block + 1;
}

static void free_row(void)
{
    union block *block;
    while ((block = blocks) != NULL) {
        blocks = block->before;
        free(block);
    }
}

__attribute__((format(printf, 2, 3))) static void add(struct text *text, const char *format, ...)
{
    va_list list;
    size_t length;
    va_start(list, format);
    length = (size_t)vsnprintf(NULL, 0, format, list);
    va_end(list);
    if (text->length + length + 1 > text->room) {
        text->room = 2 * (text->length + length + 1);
        text->bytes = room_for(text->bytes, text->length, text->room);
    }
    va_start(list, format);
    vsnprintf(text->bytes + text->length, length + 1, format, list);
    va_end(list);
    text->length += length;
}

static void push_part(struct lines *lines, const char *line, size_t length)
{
    if (lines->count == lines->room) {
        lines->room = 2 * lines->room + 8;
        lines->at = room_for(lines->at, lines->count * sizeof(char *), lines->room * sizeof(char *));
    }
    lines->at[lines->count++] = room_for(line, length, length + 1);
}

static void push(struct lines *lines, const char *line)
{
    push_part(lines, line, strlen(line));
}

static void push_all(struct lines *lines, const struct lines *more)
{
    size_t i;
    for (i = 0; i < more->count; i++) {
        push(lines, more->at[i]);
    }
}

/* Ends a step that is none. */
__attribute__((format(printf, 2, 3), noreturn)) static void no_step(struct step *step, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(step->fault, sizeof(step->fault), format, list);
    va_end(list);
    longjmp(step->bad, 1);
}

/* The next word, or NULL. */
static char *maybe(struct step *step)
{
    return step->at < step->words.count ? step->words.at[step->at++] : NULL;
}

static char *next(struct step *step)
{
    char *word = maybe(step);
    if (word == NULL) {
        no_step(step, "a word is missing");
    }
    return word;
}

static uint64_t as_number(struct step *step, const char *word)
{
    char *end;
    unsigned long long number = strtoull(word, &end, 10);
    if (!isdigit((unsigned char)word[0]) || *end != 0) {
        no_step(step, "%s is no number", word);
    }
    return number;
}

static uint64_t number(struct step *step)
{
    return as_number(step, next(step));
}

/* Milliseconds. */
static int64_t duration(struct step *step)
{
    const char *word = next(step);
    char *end;
    long long number = strtoll(word, &end, 10);
    if (strcmp(end, "ms") == 0) {
        return number;
    }
    if (strcmp(end, "s") != 0) {
        no_step(step, "%s is no duration", word);
    }
    return 1000 * number;
}

static int64_t maybe_duration(struct step *step)
{
    return step->at < step->words.count ? duration(step) : BOUND_MS;
}

/* The bytes of a word, in its place: `\x0a` is one. */
static watchcore_bytes bytes_of(char *word)
{
    char *from = word, *to = word;
    unsigned int byte;
    while (*from != 0) {
        if (from[0] == '\\' && from[1] == 'x' && isxdigit((unsigned char)from[2]) && isxdigit((unsigned char)from[3])) {
            (void)sscanf(from + 2, "%2x", &byte);
            *to++ = (char)byte;
            from += 4;
        } else {
            *to++ = *from++;
        }
    }
    return watchcore_bytes_from(word, (size_t)(to - word));
}

/* Bytes as a word. */
static void add_word(struct text *text, const void *data, size_t length)
{
    const unsigned char *bytes = data;
    size_t i, plain;
    for (i = 0; i < length; i += plain + (i + plain < length)) {
        for (plain = 0; i + plain < length && isgraph(bytes[i + plain]) && bytes[i + plain] != '\\'; plain++) {
        }
        add(text, "%.*s", (int)plain, (const char *)bytes + i);
        if (i + plain < length) {
            add(text, "\\x%02x", bytes[i + plain]);
        }
    }
}

/* Ends the line that a step prints. */
static void end_line(struct step *step)
{
    push_part(&step->printed, step->line.bytes, step->line.length);
    step->line.length = 0;
}

#define print(step, ...) (add(&(step)->line, __VA_ARGS__), end_line(step))

static int all_digits(const char *text, size_t length)
{
    size_t i;
    for (i = 0; i < length && isdigit((unsigned char)text[i]); i++) {
    }
    return length > 0 && i == length;
}

/* Adds a value, and `+1`, `-1` or `%5` behind it, if that follows; how long that was. */
static size_t add_computed(struct text *all, const char *value, const char *rest)
{
    size_t digits = rest[0] == 0 ? 0 : strspn(rest + 1, "0123456789");
    unsigned long long number, by;
    if (digits == 0 || strchr("+-%", rest[0]) == NULL || !all_digits(value, strlen(value))) {
        add(all, "%s", value);
        return 0;
    }
    number = strtoull(value, NULL, 10);
    by = strtoull(rest + 1, NULL, 10);
    add(all, "%llu", rest[0] == '+' ? number + by : rest[0] == '-' ? number - by : number % by);
    return 1 + digits;
}

/* A text with `$NAME`, `$NAME+1` and `$NAME-1` in it. Names and values stand in turn; another name stays as it is. */
static char *with_names(const char *text, const struct lines *names)
{
    struct text all = {NULL, 0, 0};
    const char *dollar;
    while ((dollar = strchr(text, '$')) != NULL) {
        size_t length = 0, i;
        while (isalnum((unsigned char)dollar[1 + length])) {
            length++;
        }
        for (i = names->count; i > 0; i -= 2) {
            if (strlen(names->at[i - 2]) == length && strncmp(names->at[i - 2], dollar + 1, length) == 0) {
                break;
            }
        }
        add(&all, "%.*s", (int)(dollar - text), text);
        text = dollar + 1 + length;
        if (i == 0) {
            add(&all, "%.*s", (int)(length + 1), dollar);
        } else {
            text += add_computed(&all, names->at[i - 1], text);
        }
    }
    add(&all, "%s", text);
    return all.bytes;
}

/* `each A..B TEXT` is TEXT for each number, `#` in it being the number, and `TEXT ; TEXT` one after the other; anything else
   is itself. */
static void push_each(struct lines *all, const char *text)
{
    unsigned long long from, to;
    int begin = 0;
    if (sscanf(text, "each %llu..%llu %n", &from, &to, &begin) != 2 || begin == 0) {
        push(all, text);
        return;
    }
    for (; from <= to; from++) {
        struct text one = {NULL, 0, 0};
        const char *rest = text + begin, *mark;
        char number[32], *step, *end;
        snprintf(number, sizeof(number), "%llu", from);
        while ((mark = strchr(rest, '#')) != NULL) {
            add(&one, "%.*s", (int)(mark - rest), rest);
            rest = mark + 1;
            rest += add_computed(&one, number, rest);
        }
        add(&one, "%s", rest);
        for (step = one.bytes; (end = strstr(step, " ; ")) != NULL; step = end + 3) {
            push_part(all, step, (size_t)(end - step));
        }
        push(all, step);
    }
}

/* `a{08..10}b` is three words, `a{x*3}b` is axxxb; a word may have several of them. `begin` stands before each. */
static void push_braces(struct lines *all, const char *begin, const char *word, size_t length)
{
    const char *end = word + length, *open = memchr(word, '{', length), *close, *mark;
    unsigned long long from = 1, to = 0;
    struct text one = {NULL, 0, 0};
    size_t before;
    close = open == NULL ? NULL : memchr(open, '}', (size_t)(end - open));
    add(&one, "%s%.*s", begin, (int)(close == NULL ? length : (size_t)(open - word)), word);
    if (close == NULL) {
        push_part(all, one.bytes, one.length);
        return;
    }
    before = one.length;
    mark = memchr(open, '*', (size_t)(close - open));
    if (mark != NULL && all_digits(mark + 1, (size_t)(close - mark - 1))) {
        size_t text = (size_t)(mark - open - 1), count = strtoull(mark + 1, NULL, 10);
        char *repeated = room_for(NULL, 0, text * count + 1);
        while (count > 0) {
            memcpy(repeated + text * --count, open + 1, text);
        }
        add(&one, "%s", repeated);
    } else if (mark = strstr(open, ".."), mark != NULL && mark < close && all_digits(open + 1, (size_t)(mark - open - 1)) &&
               all_digits(mark + 2, (size_t)(close - mark - 2))) {
        to = strtoull(mark + 2, NULL, 10);
        for (from = strtoull(open + 1, NULL, 10); from <= to; from++) {
            one.length = before;
            add(&one, "%0*llu", (int)(mark - open - 1), from);
            push_braces(all, one.bytes, close + 1, (size_t)(end - close - 1));
        }
        return;
    } else {
        add(&one, "%.*s", (int)(close + 1 - open), open);
    }
    push_braces(all, one.bytes, close + 1, (size_t)(end - close - 1));
}

/* Words between spaces; one that begins with a quote ends with the next. */
static void push_words(struct lines *all, const char *step)
{
    while (*(step += strspn(step, " ")) != 0) {
        size_t length;
        if (*step == '"') {
            length = strcspn(++step, "\"");
            push_part(all, step, length);
            step += length + (step[length] == '"');
        } else {
            length = strcspn(step, " ");
            push_braces(all, "", step, length);
            step += length;
        }
    }
}

/* `...` stands for any lines. */
static int matches(char **expected, size_t expected_count, char **printed, size_t printed_count)
{
    for (; expected_count > 0; expected++, expected_count--, printed++, printed_count--) {
        if (strcmp(expected[0], "...") == 0) {
            while (!matches(expected + 1, expected_count - 1, printed, printed_count)) {
                if (printed_count == 0) {
                    return 0;
                }
                printed++;
                printed_count--;
            }
            return 1;
        }
        if (printed_count == 0 || strcmp(expected[0], printed[0]) != 0) {
            return 0;
        }
    }
    return printed_count == 0;
}

/* Shows lines that are in one of the two, between those that both begin and end with. */
static void show_difference(const struct lines *expected, const struct lines *printed)
{
    size_t least = expected->count < printed->count ? expected->count : printed->count, same = 0, tail = 0, i;
    while (same < least && strcmp(expected->at[same], printed->at[same]) == 0) {
        same++;
    }
    while (tail < least - same &&
           strcmp(expected->at[expected->count - 1 - tail], printed->at[printed->count - 1 - tail]) == 0) {
        tail++;
    }
    printf("  %zu lines are as expected\n", same);
    for (i = same; i < expected->count - tail; i++) {
        printf("- %s\n", expected->at[i]);
    }
    for (i = same; i < printed->count - tail; i++) {
        printf("+ %s\n", printed->at[i]);
    }
}

/* Runs the words of a step. 0: it is no step, and `fault` says why. */
static int run(struct step *step)
{
    if (setjmp(step->bad) != 0) {
        return 0;
    }
    run_words(step);
    return 1;
}

/* Runs the steps of a line, as far as they are some. */
static int run_steps(struct step *step, const struct lines *steps)
{
    int good = 1;
    size_t i;
    step->printed.count = 0;
    for (i = 0; i < steps->count && good; i++) {
        step->at = step->words.count = 0;
        push_words(&step->words, steps->at[i]);
        good = run(step);
    }
    return good;
}

/* Runs the step of a line, with what it must print below. Where that is wrong it shows why, below where it stands. */
static int run_line(struct core *core, const char *where, char **lines, size_t below, struct lines *names)
{
    static const char eventually[] = "eventually ";
    struct lines expected = {NULL, 0, 0}, steps = {NULL, 0, 0};
    char *text = with_names(lines[0], names), *equals = strncmp(text, "let ", 4) == 0 ? strstr(text, " = ") : NULL;
    int awaited = strncmp(text, eventually, sizeof(eventually) - 1) == 0, good;
    time_t begin = time(NULL);
    struct step step;
    size_t i, at;
    memset(&step, 0, sizeof(step));
    step.core = core;
    push_each(&steps, equals != NULL ? equals + 3 : awaited ? text + sizeof(eventually) - 1 : text);
    for (i = 1; i <= below; i++) {
        struct lines several = {NULL, 0, 0};
        if (strncmp(lines[i], "  ", 2) == 0) {
            push_each(&several, with_names(lines[i] + 2, names));
        }
        for (at = 0; at < several.count; at++) {
            push_braces(&expected, "", several.at[at], strlen(several.at[at]));
        }
    }
    do {
        good = run_steps(&step, &steps);
        if (good && equals != NULL && step.printed.count == 1) {
            push_part(names, text + 4, (size_t)(equals - text) - 4);
            push(names, step.printed.at[0]);
            return 1;
        }
        if (good && equals == NULL && matches(expected.at, expected.count, step.printed.at, step.printed.count)) {
            return 1;
        }
        sched_yield();
    } while (good && awaited && time(NULL) <= begin + BOUND_MS / 1000);
    printf("  %s: %s\n", where, lines[0]);
    if (!good) {
        printf("  %s\n", step.fault);
    }
    show_difference(&expected, &step.printed);
    return 0;
}

/* The lines of a file. */
static int read_lines(const char *path, struct lines *lines)
{
    FILE *file = fopen(path, "r");
    char *line = NULL;
    size_t room = 0;
    ssize_t length;
    if (file == NULL) {
        return 0;
    }
    while ((length = getline(&line, &room, file)) > 0) {
        push_part(lines, line, (size_t)length - (line[length - 1] == '\n'));
    }
    free(line);
    fclose(file);
    return 1;
}

/* Whether the words of `faces`, up to a semicolon, name this language. */
static int has_face(const struct lines *lines, const char *face)
{
    struct lines words = {NULL, 0, 0};
    size_t i;
    for (i = 0; i < lines->count && strncmp(lines->at[i], "faces: ", 7) != 0; i++) {
    }
    if (i < lines->count) {
        lines->at[i][strcspn(lines->at[i], ";")] = 0;
        push_words(&words, lines->at[i]);
    }
    for (i = 0; i < words.count && strcmp(words.at[i], face) != 0; i++) {
    }
    return i < words.count;
}

#endif /* SCRIPT_H */
