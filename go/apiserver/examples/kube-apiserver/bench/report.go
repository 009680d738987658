package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
)

// figures are what was measured. Runs of some rows each may share a file.
type figures struct {
	file string
	all  []figure
}

type figure struct {
	row, what, server string
	value             float64
}

func (b *bench) add(s *server, row, what string, value float64) {
	b.all = append(b.all, figure{row, what, s.name, value})
	fmt.Fprintf(os.Stderr, "%s\t%s\t%s\t%.4g\n", row, what, s.name, value)
}

// table appends the figures to the file, and prints the medians of what it has, with the least and the greatest.
func (f *figures) table(out io.Writer) error {
	if f.file != "" {
		if err := f.exchange(); err != nil {
			return err
		}
	}
	type line struct{ row, what string }
	var lines []line
	values := map[line]map[string][]float64{}
	for _, one := range f.all {
		l := line{one.row, one.what}
		if values[l] == nil {
			lines, values[l] = append(lines, l), map[string][]float64{}
		}
		values[l][one.server] = append(values[l][one.server], one.value)
	}
	fmt.Fprintf(out, "| row | figure | %s | %s | ratio |\n| --- | --- | --- | --- | --- |\n", released, replaced)
	for _, l := range lines {
		theirs, ours := summary(values[l][released]), summary(values[l][replaced])
		ratio := "-"
		if theirs.median != 0 {
			ratio = fmt.Sprintf("%.2f", ours.median/theirs.median)
		}
		fmt.Fprintf(out, "| %s | %s | %s | %s | %s |\n", l.row, l.what, theirs, ours, ratio)
	}
	return nil
}

// exchange appends the figures to the file, and takes those that it has.
func (f *figures) exchange() error {
	file, err := os.OpenFile(f.file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	for _, one := range f.all {
		fmt.Fprintf(file, "%s\t%s\t%s\t%g\n", one.row, one.what, one.server, one.value)
	}
	if err := file.Close(); err != nil {
		return err
	}
	text, err := os.ReadFile(f.file)
	if err != nil {
		return err
	}
	f.all = nil
	for line := range strings.Lines(string(text)) {
		fields := strings.Split(strings.TrimSpace(line), "\t")
		if len(fields) != 4 {
			return fmt.Errorf("%s: %q is no figure", f.file, line)
		}
		value, err := strconv.ParseFloat(fields[3], 64)
		if err != nil {
			return err
		}
		f.all = append(f.all, figure{fields[0], fields[1], fields[2], value})
	}
	return nil
}

type spread struct {
	median, least, greatest float64
	count                   int
}

func summary(values []float64) (s spread) {
	if s.count = len(values); s.count == 0 {
		return s
	}
	slices.Sort(values)
	return spread{(values[(s.count-1)/2] + values[s.count/2]) / 2, values[0], values[s.count-1], s.count}
}

func (s spread) String() string {
	switch {
	case s.count == 0:
		return "-"
	case s.least == s.greatest:
		return fmt.Sprintf("%.4g", s.median)
	}
	return fmt.Sprintf("%.4g (%.4g to %.4g)", s.median, s.least, s.greatest)
}

func (b *bench) etcdMetric(ctx context.Context, name string) (float64, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/metrics", b.etcd.port), nil)
	if err != nil {
		return 0, err
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return sum(string(text), name), err
}
