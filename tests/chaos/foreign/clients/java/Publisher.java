// Publishes numbered messages until its standard input ends; one line of JSON for each answer.
// What all four publishers do alike is in ../../programs.py.
import io.nats.client.*;
import io.nats.client.api.PublishAck;
import io.nats.client.support.Encoding;
import java.io.*;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;

public class Publisher {
    static final long PACE_MS = 10, PATIENCE_MS = 2500, PAUSE_MS = 100;
    static final PrintStream OUT =
        new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
    static volatile boolean ended = false;

    public static void main(String[] arguments) throws Exception {
        String mode = arguments[1];
        String[] subjects = Arrays.copyOfRange(arguments, 2, arguments.length);
        Connection connection = Nats.connect(new Options.Builder().server(arguments[0])
            .maxReconnects(-1).reconnectWait(Duration.ofMillis(PAUSE_MS)).build());
        JetStream stream = connection.jetStream(JetStreamOptions.builder()
            .requestTimeout(Duration.ofMillis(PATIENCE_MS)).build());
        String inbox = connection.createInbox();
        connection.createDispatcher(Publisher::answered).subscribe(inbox + ".*");
        Thread ending = new Thread(Publisher::waitForTheEnd);
        ending.setDaemon(true);
        ending.start();
        int number = 0;
        for (; !ended; number++) {
            Thread.sleep(PACE_MS);
            String subject = subjects[number % subjects.length];
            String id = subject + " " + number;
            byte[] value = (id + " \u2603").getBytes(StandardCharsets.UTF_8);
            if (mode.equals("once")) {
                connection.publish(subject, inbox + "." + number, value);
            } else {
                while (!stored(stream, number, subject, id, value)) Thread.sleep(PAUSE_MS);
            }
        }
        Thread.sleep(PATIENCE_MS);
        OUT.printf("{\"sent\":%d}%n", number);
        connection.close();
    }

    static void answered(Message message) {
        String subject = message.getSubject();
        String number = subject.substring(subject.lastIndexOf('.') + 1);
        if (message.isStatusMessage() && message.getStatus().getCode() == 503) {
            say(number, "\"no_responders\":true");
        } else {
            say(number, "\"answer\":" + quoted(new String(message.getData(), StandardCharsets.UTF_8)));
        }
    }

    /** One attempt at a message with an id. */
    static boolean stored(JetStream stream, int number, String subject, String id, byte[] value) {
        try {
            PublishAck ack = stream.publish(subject, value,
                PublishOptions.builder().messageId(id).build());
            say(number, String.format("\"stream\":%s,\"seq\":%d,\"duplicate\":%b",
                quoted(ack.getStream()), ack.getSeqno(), ack.isDuplicate()));
            return true;
        } catch (JetStreamApiException refused) {
            say(number, String.format("\"code\":%d,\"err_code\":%d,\"description\":%s",
                refused.getErrorCode(), refused.getApiErrorCode(), quoted(refused.getErrorDescription())));
        } catch (IOException failed) {
            String why = String.valueOf(failed.getMessage());
            say(number, why.contains("503 No Responders") ? "\"no_responders\":true" : "\"error\":" + quoted(why));
        }
        return false;
    }

    static String quoted(String text) { return '"' + Encoding.jsonEncode(text) + '"'; }

    static void say(Object number, String rest) { OUT.println("{\"number\":" + number + "," + rest + "}"); }

    static void waitForTheEnd() {
        try { while (System.in.read() >= 0); } catch (IOException gone) { OUT.println(gone); }
        ended = true;
    }
}
