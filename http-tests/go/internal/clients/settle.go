package clients

import (
	"context"
	"errors"
	"fmt"

	"watchcore.test/http/internal/history"
	"watchcore.test/http/internal/world"
)

// Settle waits until a client has etcd's own state in each of its logs, then checks that it was told everything once.
func (c *Client) Settle(ctx context.Context, w *world.World) error {
	var failures []error
	for _, log := range c.Logs {
		if err := c.settle(ctx, w, log); err != nil {
			failures = append(failures, err)
		}
	}
	return errors.Join(failures...)
}

func (c *Client) settle(ctx context.Context, w *world.World, log *history.Log) error {
	stored, err := w.Etcd.Stored(ctx, log.Prefix)
	if err != nil {
		return err
	}
	err = world.Until(ctx, fmt.Sprintf("%s (%s) has etcd's state", log.Name, log.Prefix), func() error {
		if err := c.Err(); err != nil {
			return nil // said below, and nothing to wait for
		}
		if c.State != nil {
			state, err := c.State(log)
			if err != nil {
				return err
			}
			if state != nil {
				if difference := history.Difference(state, stored); difference != "" {
					return errors.New("its own state: " + difference)
				}
			}
		}
		if difference := log.Difference(stored); difference != "" {
			return errors.New(difference)
		}
		return nil
	})
	if failed := c.Err(); failed != nil {
		return fmt.Errorf("%s (%s): %w", log.Name, log.Prefix, failed)
	}
	// The first thing that went wrong says more than where it led to.
	return errors.Join(w.Writer.History.Check(log), err)
}

// Began waits until each client has read its first state.
func Began(ctx context.Context, all []*Client) error {
	for _, c := range all {
		for _, log := range c.Logs {
			err := world.Until(ctx, fmt.Sprintf("%s (%s) reads its first state", log.Name, log.Prefix), func() error {
				if c.Err() != nil {
					return nil
				}
				if c.State != nil {
					if _, err := c.State(log); err != nil {
						return err
					}
				}
				if lists, _ := log.Counts(); lists == 0 {
					return errors.New("no list yet")
				}
				return nil
			})
			if err := errors.Join(c.Err(), err); err != nil {
				return fmt.Errorf("%s (%s): %w", log.Name, log.Prefix, err)
			}
		}
	}
	return nil
}
