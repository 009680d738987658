# The overview of watchcore.h as the man page watchcore(3); version is a variable.
function say(line) { if (!(empty && (line == "" || line == ".PP"))) print line; empty = line == "" || line == ".PP" }
function section(title) { if (literal) say(".fi"); say(".SH " title); say(".nf"); literal = 1 }
BEGIN {
    print ".TH WATCHCORE 3 \"\" \"watchcore " version "\" \"Library\"\n.SH NAME\nwatchcore \\- the Kubernetes watch cache as a library"
    print ".SH SYNOPSIS\n.nf\n#include <watchcore.h>\n\ncc program.c $(pkg\\-config \\-\\-cflags \\-\\-libs watchcore)\n.fi\n.SH DESCRIPTION"
    print "The header is the manual: each function's comment says who owns what it gives, until when, whether it blocks,"
    print "which threads may call it, and its codes. This page is its overview."
}
/^#ifndef WATCHCORE_H/ { exit }
NR <= 4 { next }
{ sub("^// ?", ""); gsub(/\\/, "\\e"); gsub("-", "\\-"); sub("^[.']", "\\\\\\&&") }
/^(Contents|Conventions)$/ { section(toupper($0)); next }
/^A whole program/ { section("EXAMPLE") }
/^Build / && !literal { say(".nf"); literal = 1 }
{ say($0 == "" && !literal ? ".PP" : $0) }
END { if (literal) say(".fi"); print ".SH SEE ALSO\n.BR watchcore (1)" }
