import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.junit.runner.Description;
import org.junit.runner.JUnitCore;
import org.junit.runner.notification.Failure;
import org.junit.runner.notification.RunListener;

/**
 * Runs Apache's integration tests one after the other: `Suite CLASS...`.
 *
 * Each test is told as a line of JSON when it has ended: its name, how long it took, why it failed,
 * and how many messages the brokers have stored meanwhile: a test that says that it sent and stored
 * none has shown nothing.
 */
public final class Suite extends RunListener {
    private static final long ANSWER_MS = 60_000;

    private final DefaultMQAdminExt admin;
    private long startMs;
    private long storedBefore;
    private String failure;

    private Suite() throws Exception {
        admin = new DefaultMQAdminExt(ANSWER_MS);
        admin.setInstanceName("suite");
        admin.setNamesrvAddr(System.getProperty("suite.nameServer"));
        admin.start();
    }

    public static void main(String[] names) throws Exception {
        JUnitCore core = new JUnitCore();
        core.addListener(new Suite());
        for (String name : names) {
            core.run(Class.forName(name));
        }
        System.out.println("{\"event\":\"done\"}");
        System.out.flush();
        // Some tests leave clients behind.
        Runtime.getRuntime().halt(0);
    }

    private long stored() {
        long sum = 0;
        try {
            for (String broker : System.getProperty("suite.brokers").split(",")) {
                var told = admin.fetchBrokerRuntimeStats(broker.substring(broker.indexOf('=') + 1));
                sum += Long.parseLong(told.getTable().get("putMessageTimesTotal"));
            }
        } catch (Exception error) {
            // JUnit would run the other tests without a listener that throws.
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
        return sum;
    }

    @Override
    public void testStarted(Description description) {
        failure = null;
        startMs = System.currentTimeMillis();
        storedBefore = stored();
    }

    @Override
    public void testFailure(Failure told) {
        String[] trace = told.getTrace().split("\n");
        StringBuilder text = new StringBuilder();
        for (int at = 0; at < Math.min(trace.length, 12); at++) {
            text.append(trace[at].strip()).append(" | ");
        }
        failure = text.toString();
    }

    @Override
    public void testAssumptionFailure(Failure told) {
        failure = "not run: " + told.getMessage();
    }

    @Override
    public void testFinished(Description description) {
        String name = description.getClassName();
        System.out.printf(
            "{\"event\":\"test\",\"name\":\"%s.%s\",\"ms\":%d,\"stored\":%d,\"failure\":%s}%n",
            name.substring(name.lastIndexOf('.') + 1), description.getMethodName(),
            System.currentTimeMillis() - startMs, stored() - storedBefore, quote(failure));
        System.out.flush();
    }

    private static String quote(String text) {
        if (text == null) {
            return "null";
        }
        StringBuilder quoted = new StringBuilder("\"");
        for (char each : text.toCharArray()) {
            quoted.append(each == '"' || each == '\\' || each < ' ' || each > '~' ? '?' : each);
        }
        return quoted.append('"').toString();
    }
}
