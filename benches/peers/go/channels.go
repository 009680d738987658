package main

// channels is a channel for each watcher, found in a map by key and by the prefix of
// a namespace.
type channels struct {
	all       []chan *version
	selective map[string][]chan *version
	revision  uint64
}

// room is that of a window: no send waits.
const room = window

func openChannels(interests []interest) (publisher, []receiver) {
	c := &channels{selective: map[string][]chan *version{}}
	receivers := make([]receiver, len(interests))
	for at, interest := range interests {
		channel := make(chan *version, room)
		if interest.what == everything {
			c.all = append(c.all, channel)
		} else {
			c.selective[interest.wanted()] = append(c.selective[interest.wanted()], channel)
		}
		receivers[at] = func(took func(int)) {
			for first := range channel {
				took(drained(channel, first, readVersion))
			}
		}
	}
	return c, receivers
}

func (c *channels) publish(key string, value []byte) {
	c.revision++
	v := copied(c.revision, key, value)
	for _, channel := range c.all {
		channel <- v
	}
	if len(c.selective) == 0 {
		return
	}
	for _, channel := range c.selective[key] {
		channel <- v
	}
	for _, channel := range c.selective[namespaceOf(key)] {
		channel <- v
	}
}
