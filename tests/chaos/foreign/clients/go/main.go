// Publishes numbered messages until its standard input ends; one line of JSON for each answer.
// What all four publishers do alike is in ../../programs.py.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const pace, patience, pause = 10 * time.Millisecond, 2500 * time.Millisecond, 100 * time.Millisecond

type line map[string]any

var saying sync.Mutex

func say(said line) {
	text, err := json.Marshal(said)
	must(err)
	saying.Lock()
	defer saying.Unlock()
	fmt.Println(string(text))
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	mode, subjects := os.Args[2], os.Args[3:]
	conn, err := nats.Connect(os.Args[1], nats.MaxReconnects(-1), nats.ReconnectWait(pause))
	must(err)
	js, err := jetstream.New(conn)
	must(err)
	inbox := nats.NewInbox()
	_, err = conn.Subscribe(inbox+".*", func(answer *nats.Msg) {
		number, err := strconv.Atoi(answer.Subject[strings.LastIndex(answer.Subject, ".")+1:])
		must(err)
		if answer.Header.Get("Status") == "503" {
			say(line{"number": number, "no_responders": true})
		} else {
			say(line{"number": number, "answer": string(answer.Data)})
		}
	})
	must(err)
	ended := make(chan bool)
	go func() { _, _ = io.Copy(io.Discard, os.Stdin); close(ended) }()
	for number := 0; ; number++ {
		select {
		case <-ended:
			time.Sleep(patience)
			say(line{"sent": number})
			return
		case <-time.After(pace):
		}
		subject := subjects[number%len(subjects)]
		id := fmt.Sprintf("%s %d", subject, number)
		value := []byte(id + " \u2603")
		if mode == "once" {
			must(conn.PublishRequest(subject, fmt.Sprintf("%s.%d", inbox, number), value))
			continue
		}
		for !stored(js, number, subject, id, value) {
			time.Sleep(pause)
		}
	}
}

// One attempt at a message with an id.
func stored(js jetstream.JetStream, number int, subject, id string, value []byte) bool {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	ack, err := js.Publish(ctx, subject, value, jetstream.WithMsgID(id))
	var refused *jetstream.APIError
	switch {
	case err == nil:
		say(line{"number": number, "stream": ack.Stream, "seq": ack.Sequence, "duplicate": ack.Duplicate})
	case errors.As(err, &refused):
		say(line{"number": number, "code": refused.Code, "err_code": refused.ErrorCode, "description": refused.Description})
	case errors.Is(err, jetstream.ErrNoStreamResponse):
		say(line{"number": number, "no_responders": true})
	default:
		say(line{"number": number, "error": err.Error()})
	}
	return err == nil
}
