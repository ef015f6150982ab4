// Reads a stream by the JetStream API; one line of JSON for what it has found.
// What all readers do alike is in ../../reading.py.
import io.nats.client.*;
import io.nats.client.api.*;
import java.io.*;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.stream.Collectors;

public class Reader {
    static final Duration PATIENCE = Duration.ofSeconds(30), ACK = Duration.ofSeconds(2);
    static final PrintStream OUT =
        new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);

    interface Attempt { void run() throws Exception; }

    public static void main(String[] arguments) throws Exception {
        String mode = arguments[1], stream = arguments[2];
        Connection connection = Nats.connect(new Options.Builder().server(arguments[0])
            .maxReconnects(-1).reconnectWait(Duration.ofMillis(100)).build());
        JetStreamOptions options = JetStreamOptions.builder().domain("log").requestTimeout(PATIENCE).build();
        if (mode.equals("work")) {
            work(connection, options, stream);
        } else {
            fetch(connection, options, stream);
            ordered(connection, options, stream);
            direct(connection, options, stream);
            push(connection, options, stream);
            bucket(connection, options);
        }
        connection.close();
    }

    static synchronized void say(String line) {
        OUT.println(line);
    }

    static boolean fails(Attempt attempt) {
        try {
            attempt.run();
            return false;
        } catch (Exception refused) {
            return true;
        }
    }

    static void fetch(Connection connection, JetStreamOptions options, String stream) throws Exception {
        StreamContext handle = connection.getStreamContext(stream, options);
        ConsumerContext consumer = handle.createOrUpdateConsumer(ConsumerConfiguration.builder()
            .durable("java-fetch").ackPolicy(AckPolicy.Explicit).build());
        List<Message> taken = new ArrayList<>();
        try (FetchConsumer batch = consumer.fetch(FetchConsumeOptions.builder()
                .maxMessages(4).expiresIn(PATIENCE.toMillis()).build())) {
            for (Message next = batch.nextMessage(); next != null && taken.size() < 4; next = batch.nextMessage()) {
                taken.add(next);
                if (taken.size() == 4) break;
            }
        }
        List<Long> found = taken.stream().map(each -> each.metaData().streamSequence()).collect(Collectors.toList());
        say(String.format("{\"fetched\":%s,\"subject\":\"%s\",\"header\":\"%s\"}", found,
            taken.get(1).getSubject(), taken.get(1).getHeaders().getFirst("Number")));
        taken.get(0).ackSync(PATIENCE);
        taken.get(1).nak();
        taken.get(2).term();
        Message again = consumer.next(PATIENCE);
        say(String.format("{\"again\":%d,\"delivered\":%d}",
            again.metaData().streamSequence(), again.metaData().deliveredCount()));
        again.ackSync(PATIENCE);
        taken.get(3).ackSync(PATIENCE);
        ConsumerInfo info = consumer.getConsumerInfo();
        say(String.format("{\"floor\":%d,\"open\":%d,\"pending\":%d}", info.getAckFloor().getStreamSequence(),
            info.getNumAckPending(), info.getNumPending()));
    }

    static void ordered(Connection connection, JetStreamOptions options, String stream) throws Exception {
        OrderedConsumerContext consumer = connection.getStreamContext(stream, options)
            .createOrderedConsumer(new OrderedConsumerConfiguration());
        List<Long> found = new ArrayList<>();
        try (IterableConsumer messages = consumer.iterate()) {
            while (found.size() < 20) found.add(messages.nextMessage(PATIENCE).metaData().streamSequence());
        }
        say("{\"ordered\":" + found + "}");
    }

    static void direct(Connection connection, JetStreamOptions options, String stream) throws Exception {
        JetStreamManagement manager = connection.jetStreamManagement(options);
        MessageInfo fifth = manager.getMessage(stream, 5), last = manager.getLastMessage(stream, stream + ".b");
        say(String.format("{\"fifth\":\"%s\",\"last\":%d}", new String(fifth.getData()), last.getSeq()));
    }

    static void push(Connection connection, JetStreamOptions options, String stream) throws Exception {
        JetStreamSubscription subscription = connection.jetStream(options).subscribe(stream + ".a",
            PushSubscribeOptions.builder().stream(stream).ordered(true).build());
        List<Long> found = new ArrayList<>();
        while (found.size() < 10) found.add(subscription.nextMessage(PATIENCE).metaData().streamSequence());
        subscription.unsubscribe();
        say("{\"pushed\":" + found + "}");
    }

    static void bucket(Connection connection, JetStreamOptions options) throws Exception {
        KeyValueOptions kvOptions = KeyValueOptions.builder().jetStreamOptions(options).build();
        KeyValueManagement manager = connection.keyValueManagement(kvOptions);
        manager.create(KeyValueConfiguration.builder().name("java").build());
        KeyValue kv = connection.keyValue("java", kvOptions);
        BlockingQueue<String> updates = new LinkedBlockingQueue<>();
        Object watch = kv.watchAll(new KeyValueWatcher() {
            public void watch(KeyValueEntry entry) { updates.add("\"" + entry.getKey() + " " + entry.getRevision() + "\""); }
            public void endOfData() { }
        });
        long put = kv.put("colour", "blue"), created = kv.create("size", "1".getBytes());
        boolean twice = fails(() -> kv.create("size", "1".getBytes()));
        long updated = kv.update("size", "2".getBytes(), created);
        boolean stale = fails(() -> kv.update("size", "3".getBytes(), created));
        String value = kv.get("size").getValueAsString();
        kv.delete("colour");
        boolean gone = kv.get("colour") == null;
        List<String> keys = kv.keys().stream().map(each -> "\"" + each + "\"").sorted().collect(Collectors.toList());
        List<String> watched = new ArrayList<>();
        while (watched.size() < 4) watched.add(updates.poll(30, TimeUnit.SECONDS));
        ((AutoCloseable) watch).close();
        say(String.format("{\"revisions\":[%d,%d,%d],\"value\":\"%s\",\"keys\":%s,\"refused\":[%b,%b,%b],\"watched\":%s}",
            put, created, updated, value, keys, twice, stale, gone, watched));
        manager.delete("java");
    }

    static void work(Connection connection, JetStreamOptions options, String stream) throws Exception {
        StreamContext handle = connection.getStreamContext(stream, options);
        ConsumerContext consumer = handle.createOrUpdateConsumer(ConsumerConfiguration.builder()
            .durable("java-work").ackPolicy(AckPolicy.Explicit).ackWait(Duration.ofSeconds(10)).maxAckPending(1).build());
        MessageConsumer working = consumer.consume(message -> {
            long sequence = message.metaData().streamSequence();
            if (sequence % 7 == 0 && message.metaData().deliveredCount() == 1) {
                message.nak();
                return;
            }
            boolean acked = !fails(() -> message.ackSync(ACK));
            say(String.format("{\"worked\":%d,\"acked\":%b}", sequence, acked));
        });
        MessageConsumer following = handle.createOrderedConsumer(new OrderedConsumerConfiguration())
            .consume(message -> say(String.format("{\"followed\":%d}", message.metaData().streamSequence())));
        say("{\"ready\":true}");
        while (System.in.read() >= 0) { }
        working.stop();
        following.stop();
        System.exit(0);
    }
}
