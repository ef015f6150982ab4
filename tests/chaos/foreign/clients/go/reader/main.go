// Reads a stream by the JetStream API; one line of JSON for what it has found.
// What all readers do alike is in ../../../reading.py.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sort"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const patience = 30 * time.Second

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
	mode, stream := os.Args[2], os.Args[3]
	conn, err := nats.Connect(os.Args[1], nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond))
	must(err)
	js, err := jetstream.NewWithDomain(conn, "log")
	must(err)
	if mode == "work" {
		work(js, stream)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	handle, err := js.Stream(ctx, stream)
	must(err)
	fetch(ctx, handle)
	ordered(ctx, handle)
	direct(ctx, handle, stream)
	push(conn, stream)
	bucket(ctx, js)
}

func sequence(message jetstream.Msg) uint64 {
	told, err := message.Metadata()
	must(err)
	return told.Sequence.Stream
}

func fetch(ctx context.Context, stream jetstream.Stream) {
	consumer, err := stream.CreateOrUpdateConsumer(ctx, jetstream.ConsumerConfig{
		Durable: "go-fetch", AckPolicy: jetstream.AckExplicitPolicy,
	})
	must(err)
	batch, err := consumer.Fetch(4, jetstream.FetchMaxWait(patience))
	must(err)
	found, taken := []uint64{}, []jetstream.Msg{}
	for message := range batch.Messages() {
		found, taken = append(found, sequence(message)), append(taken, message)
	}
	must(batch.Error())
	say(line{"fetched": found, "subject": taken[1].Subject(), "header": taken[1].Headers().Get("Number")})
	must(taken[0].DoubleAck(ctx))
	must(taken[1].Nak())
	must(taken[2].Term())
	again, err := consumer.Next(jetstream.FetchMaxWait(patience))
	must(err)
	told, err := again.Metadata()
	must(err)
	say(line{"again": told.Sequence.Stream, "delivered": told.NumDelivered})
	must(again.DoubleAck(ctx))
	must(taken[3].DoubleAck(ctx))
	info, err := consumer.Info(ctx)
	must(err)
	say(line{"floor": info.AckFloor.Stream, "open": info.NumAckPending, "pending": info.NumPending})
}

func ordered(ctx context.Context, stream jetstream.Stream) {
	consumer, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
	must(err)
	messages, err := consumer.Messages()
	must(err)
	defer messages.Stop()
	found := []uint64{}
	for len(found) < 20 {
		message, err := messages.Next()
		must(err)
		found = append(found, sequence(message))
	}
	say(line{"ordered": found})
}

func direct(ctx context.Context, stream jetstream.Stream, name string) {
	fifth, err := stream.GetMsg(ctx, 5)
	must(err)
	last, err := stream.GetLastMsgForSubject(ctx, name+".b")
	must(err)
	say(line{"fifth": string(fifth.Data), "last": last.Sequence})
}

func push(conn *nats.Conn, stream string) {
	js, err := conn.JetStream(nats.Domain("log"))
	must(err)
	subscription, err := js.SubscribeSync(stream+".a", nats.OrderedConsumer(), nats.BindStream(stream))
	must(err)
	found := []uint64{}
	for len(found) < 10 {
		message, err := subscription.NextMsg(patience)
		must(err)
		told, err := message.Metadata()
		must(err)
		found = append(found, told.Sequence.Stream)
	}
	must(subscription.Unsubscribe())
	say(line{"pushed": found})
}

func bucket(ctx context.Context, js jetstream.JetStream) {
	kv, err := js.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: "go"})
	must(err)
	watcher, err := kv.WatchAll(ctx)
	must(err)
	put, err := kv.Put(ctx, "colour", []byte("blue"))
	must(err)
	created, err := kv.Create(ctx, "size", []byte("1"))
	must(err)
	_, twice := kv.Create(ctx, "size", []byte("1"))
	updated, err := kv.Update(ctx, "size", []byte("2"), created)
	must(err)
	_, stale := kv.Update(ctx, "size", []byte("3"), created)
	entry, err := kv.Get(ctx, "size")
	must(err)
	must(kv.Delete(ctx, "colour"))
	_, gone := kv.Get(ctx, "colour")
	keys, err := kv.Keys(ctx)
	must(err)
	sort.Strings(keys)
	watched := []string{}
	for len(watched) < 4 {
		if update := <-watcher.Updates(); update != nil {
			watched = append(watched, fmt.Sprintf("%s %d", update.Key(), update.Revision()))
		}
	}
	must(watcher.Stop())
	say(line{
		"revisions": []uint64{put, created, updated}, "value": string(entry.Value()), "keys": keys,
		"refused": []bool{twice != nil, stale != nil, gone != nil}, "watched": watched,
	})
	must(js.DeleteKeyValue(ctx, "go"))
}

// Acknowledges each message of a durable consumer, and follows in order, until the input ends.
func work(js jetstream.JetStream, name string) {
	ctx := context.Background()
	handle, err := js.Stream(ctx, name)
	must(err)
	consumer, err := handle.CreateOrUpdateConsumer(ctx, jetstream.ConsumerConfig{
		Durable: "go-work", AckPolicy: jetstream.AckExplicitPolicy, AckWait: 10 * time.Second, MaxAckPending: 1,
	})
	must(err)
	working, err := consumer.Consume(func(message jetstream.Msg) {
		told, err := message.Metadata()
		must(err)
		if told.Sequence.Stream%7 == 0 && told.NumDelivered == 1 {
			must(message.Nak())
			return
		}
		ackCtx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		acked := message.DoubleAck(ackCtx)
		say(line{"worked": told.Sequence.Stream, "acked": acked == nil})
	}, jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) {
		fmt.Fprintln(os.Stderr, "consume:", err)
	}))
	must(err)
	follower, err := handle.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
	must(err)
	following, err := follower.Consume(func(message jetstream.Msg) {
		say(line{"followed": sequence(message)})
	}, jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) {
		fmt.Fprintln(os.Stderr, "ordered:", err)
	}))
	must(err)
	say(line{"ready": true})
	_, _ = io.Copy(io.Discard, os.Stdin)
	working.Stop()
	following.Stop()
}
