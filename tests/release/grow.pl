#!/usr/bin/perl
# Makes a later version of the C interface: every struct that a caller hands in with its size grows by a member at its end.
#
#   grow.pl FILE.rs...    all files of watchcore-capi/src, which are changed in place
use strict;
use warnings;

my (%text, @names);
for my $file (@ARGV) {
    local $/;
    open my $in, '<', $file or die "$file: $!";
    $text{$file} = <$in>;
    push @names, $text{$file} =~ /unsafe impl Sized32 for (\w+)/g;
}
@names >= 15 or die "only these structs with a size were found: @names\n";
my $name = '(?:' . join('|', @names) . ')';
my $braces = qr/(\{(?:[^{}]++|(?1))*\})/;
# All members of a value are named, or the rest is another value's.
sub longer {
    my ($value) = @_;
    $value =~ s/,?\s*\}$/, next: [0; 2] }/ unless $value =~ /\.\./;
    return $value;
}
my $grown = 0;
for my $file (@ARGV) {
    my $text = $text{$file};
    $grown += $text =~ s/(pub struct $name \{.*?\n)(?=\})/$1    \/\/\/ 0.\n    pub next: [u32; 2],\n/gs;
    $text =~ s/(?<!struct )(?<!for )(?<!-> )(\b$name) $braces/"$1 " . longer($2)/ge;
    open my $out, '>', $file or die "$file: $!";
    print $out $text;
}
$grown == @names or die "$grown of " . @names . " structs grew\n";
