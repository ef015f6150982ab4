import io.nats.NatsRunnerUtils;
import io.nats.OutputThreadProvider;
import java.io.File;
import org.junit.platform.console.ConsoleLauncher;

/**
 * JUnit's console, where each server that a test starts is ready before the test goes on: -Dready
 * is the folder where the program `nats-server` of the tests (pretending.py) notes that.
 */
public final class Suite {
    private static final long PATIENCE_MS = 60_000;

    public static void main(String[] arguments) {
        String folder = System.getProperty("ready");
        if (folder != null) {
            NatsRunnerUtils.setDefaultOutputThreadProvider(new Waiting(new File(folder)));
        }
        ConsoleLauncher.main(arguments);
    }

    /** The runner asks for this thread once it has started a server, whose process it names. */
    private record Waiting(File folder) implements OutputThreadProvider {
        @Override
        public Thread getOutputThread(String name, Runnable reader) {
            String pid = name.replaceAll(".*pid\\((\\d+)\\).*", "$1");
            File ready = new File(folder, "asked." + pid + ".ready");
            long deadline = System.currentTimeMillis() + PATIENCE_MS;
            while (!ready.exists() && System.currentTimeMillis() < deadline) {
                try {
                    Thread.sleep(20);
                } catch (InterruptedException error) {
                    Thread.currentThread().interrupt();
                    break;
                }
            }
            return OutputThreadProvider.super.getOutputThread(name, reader);
        }
    }
}
