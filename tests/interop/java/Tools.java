import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Runs the commands of `mqadmin` one after the other, in one JVM: each line of standard input is a
 * command, its words separated by tabs and before them how many seconds it may take. What it has
 * printed by then is told as a line of JSON.
 */
public final class Tools {
    public static void main(String[] arguments) throws Exception {
        PrintStream out = System.out;
        BufferedReader commands =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.split("\t");
            String[] command = java.util.Arrays.copyOfRange(words, 1, words.length);
            ByteArrayOutputStream printed = new ByteArrayOutputStream();
            PrintStream capture = new PrintStream(printed, true, StandardCharsets.UTF_8);
            System.setOut(capture);
            System.setErr(capture);
            Thread thread = new Thread(() -> MQAdminStartup.main0(command, null));
            thread.setDaemon(true);
            thread.start();
            thread.join(Long.parseLong(words[0]) * 1_000);
            boolean ended = !thread.isAlive();
            System.setOut(out);
            out.println("{\"event\":\"ran\",\"ended\":" + ended + ",\"printed\":"
                + quote(printed.toString(StandardCharsets.UTF_8)) + "}");
            out.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private static String quote(String text) {
        StringBuilder quoted = new StringBuilder("\"");
        for (char each : text.toCharArray()) {
            if (each >= ' ' && each <= '~' && each != '"' && each != '\\') {
                quoted.append(each);
            } else {
                quoted.append(String.format("\\u%04x", (int) each));
            }
        }
        return quoted.append('"').toString();
    }
}
