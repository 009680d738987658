package clients

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"watchcore.test/http/internal/history"
	"watchcore.test/http/internal/world"
)

// Kubectl starts `kubectl get -w` with its tables, again and again: it ends with its watch, and a new one lists anew.
//
// A table has no revisions. Its column Serial says which put a row shows, and the history when that was; a row of a
// deleted object shows its last state. How long the list is that comes first follows from the revision of the watch
// behind it, which kubectl logs.
func Kubectl(ctx context.Context, binary, url, plural, directory string, told *history.History) (*Client, error) {
	log := history.NewLog("kubectl get -w", plural+"/")
	c, ctx := start(ctx, log)
	k := &kubectl{plural: plural, history: told}
	home := filepath.Join(directory, "kubectl-"+plural)
	c.State = func(*history.Log) (map[string]int64, error) { return k.state(log) }
	c.run(func() error {
		for {
			if err := k.watch(ctx, binary, url, home); err != nil {
				return err
			}
			if !pause(ctx) {
				return nil
			}
		}
	})
	return c, nil
}

// KubectlArguments are those that keep kubectl from everything but this server.
func KubectlArguments(url, home string) (arguments, environment []string) {
	return []string{"--server", url, "--cache-dir", filepath.Join(home, "cache")},
		[]string{"HOME=" + home, "KUBECONFIG=" + filepath.Join(home, "none"), "NO_PROXY=*"}
}

type kubectl struct {
	plural  string
	history *history.History

	mutex sync.Mutex
	runs  []*kubectlRun
	// How much of the runs is in the log.
	run, row int
}

// A kubectlRun is one start of kubectl: the revision of its watch, 0 before that began, and the rows that it printed.
type kubectlRun struct {
	revision int64
	rows     []kubectlRow
}

type kubectlRow struct {
	kind, key string
	serial    int64
}

var watchRequest = regexp.MustCompile(`[?&]resourceVersion=(\d+)[^ "]*&watch=true`)

func (k *kubectl) watch(ctx context.Context, binary, url, home string) error {
	run := &kubectlRun{}
	k.mutex.Lock()
	k.runs = append(k.runs, run)
	k.mutex.Unlock()

	arguments, environment := KubectlArguments(url, home)
	arguments = append(arguments, "get", k.plural, "--watch", "--output-watch-events", "--no-headers", "-v", "6")
	if k.plural == "widgets" {
		arguments = append(arguments, "--all-namespaces")
	}
	out, outWriter := io.Pipe()
	program, err := world.Command{
		Name: binary, Arguments: arguments, Environment: environment, Output: outWriter,
		OnError: func(line string) {
			if found := watchRequest.FindStringSubmatch(line); found != nil {
				k.mutex.Lock()
				defer k.mutex.Unlock()
				run.revision, _ = strconv.ParseInt(found[1], 10, 64)
			}
		},
	}.Start()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, program.Kill)
	defer stop()
	go func() {
		<-program.Ended()
		outWriter.Close()
	}()
	scanner := bufio.NewScanner(out)
	for scanner.Scan() {
		// A server that starts anew between the list and the watch may begin above the list. kubectl prints that and ends.
		if line := scanner.Text(); strings.HasPrefix(line, "ERROR ") && strings.Contains(line, " Expired ") {
			continue
		}
		row, err := k.parse(scanner.Text())
		if err != nil {
			program.Kill()
			return err
		}
		k.mutex.Lock()
		run.rows = append(run.rows, row)
		k.mutex.Unlock()
	}
	<-program.Ended()
	return nil
}

// parse reads EVENT [NAMESPACE] NAME COLOR SERIAL AGE.
func (k *kubectl) parse(line string) (kubectlRow, error) {
	fields := strings.Fields(line)
	want := 5
	if k.plural == "widgets" {
		want = 6
	}
	if len(fields) != want {
		return kubectlRow{}, fmt.Errorf("kubectl printed %q", line)
	}
	serial, err := strconv.ParseInt(fields[want-2], 10, 64)
	if err != nil {
		return kubectlRow{}, fmt.Errorf("kubectl printed %q: %w", line, err)
	}
	return kubectlRow{fields[0], k.plural + "/" + strings.Join(fields[1:want-3], "/"), serial}, nil
}

// state takes into the log what came since, and says what kubectl shows now.
func (k *kubectl) state(log *history.Log) (map[string]int64, error) {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	puts, deletions := k.history.BySerial(), k.history.Deletions()
	for k.run < len(k.runs) {
		run := k.runs[k.run]
		last := k.run == len(k.runs)-1
		if run.revision == 0 {
			if last {
				break
			}
			// This kubectl ended before its watch began: nobody was told anything that counts.
			k.run, k.row = k.run+1, 0
			continue
		}
		if k.row == 0 {
			list := len(k.history.State(k.plural+"/", run.revision))
			if len(run.rows) < list {
				if last {
					break
				}
				k.run, k.row = k.run+1, 0
				continue
			}
			items := map[string]int64{}
			for _, row := range run.rows[:list] {
				items[row.key] = puts[row.serial].Revision
			}
			log.List(run.revision, items)
			k.row = list
		}
		for ; k.row < len(run.rows); k.row++ {
			row := run.rows[k.row]
			put, known := puts[row.serial]
			if !known || put.Key != row.key {
				return nil, fmt.Errorf("kubectl shows %s with the serial %d, which nobody wrote there", row.key, row.serial)
			}
			revision := put.Revision
			if row.kind == "DELETED" {
				revision = deletions.After(row.key, put.Revision)
			}
			log.Event(row.kind, row.key, revision)
		}
		if last {
			break
		}
		k.run, k.row = k.run+1, 0
	}
	return log.State(), nil
}
