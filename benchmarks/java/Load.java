import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/**
 * Loads a broker as it is told, a line of standard input at a time, and answers each with a line of JSON: one JVM for
 * all of a benchmark, so that it is warm.
 *
 * <p>A line: mode, name server, topic, the broker's process id, width (threads, sends under way, messages of a batch or
 * of a listener's call), seconds of warm-up, measured seconds; of "drain" and "pop" (which needs 5.x, and a group in
 * that mode) the last two are the number of messages, of which the first fifth does not count, and the group.
 */
public final class Load {
    private static final byte[] BODY = new byte[128];
    private static int instances;

    private final AtomicLong done = new AtomicLong();
    private long brokerPid;

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            System.out.println(new Load().run(line.split(" ")));
            System.out.flush();
        }
        System.exit(0);
    }

    private String run(String[] words) throws Exception {
        brokerPid = Long.parseLong(words[3]);
        int width = Integer.parseInt(words[4]);
        if (words[0].equals("drain") || words[0].equals("pop")) {
            return drain(words[0], words[1], words[2], width, Long.parseLong(words[5]), words[6]);
        }
        DefaultMQProducer producer = new DefaultMQProducer("GID_load");
        producer.setInstanceName("load" + instances++);
        producer.setNamesrvAddr(words[1]);
        producer.setSendMsgTimeout(10_000);
        producer.setRetryTimesWhenSendAsyncFailed(0);
        producer.start();
        long now = System.nanoTime();
        long from = now + (long) (Double.parseDouble(words[5]) * 1e9);
        long to = from + (long) (Double.parseDouble(words[6]) * 1e9);
        boolean isSync = words[0].equals("sync");
        Semaphore permits = new Semaphore(words[0].equals("async") ? width : 0);
        List<Thread> threads = new ArrayList<>();
        for (int n = 0; n < (isSync ? width : 1); n++) {
            Thread thread = new Thread(() -> send(producer, words[0], words[2], width, permits, to));
            thread.start();
            threads.add(thread);
        }
        Thread.sleep(Math.max(0, (from - System.nanoTime()) / 1_000_000));
        Sample begin = new Sample();
        Thread.sleep(Math.max(0, (to - System.nanoTime()) / 1_000_000));
        String told = begin.describe();
        for (Thread thread : threads) {
            thread.join();
        }
        if (words[0].equals("async")) {
            permits.acquire(width);
        }
        producer.shutdown();
        return told;
    }

    private void send(
            DefaultMQProducer producer, String mode, String topic, int width, Semaphore permits, long to) {
        try {
            while (System.nanoTime() < to) {
                if (mode.equals("sync")) {
                    producer.send(new Message(topic, BODY));
                    done.incrementAndGet();
                } else if (mode.equals("batch")) {
                    List<Message> batch = new ArrayList<>(width);
                    for (int n = 0; n < width; n++) {
                        batch.add(new Message(topic, BODY));
                    }
                    producer.send(batch);
                    done.addAndGet(width);
                } else {
                    permits.acquire();
                    producer.send(new Message(topic, BODY), new SendCallback() {
                        @Override
                        public void onSuccess(SendResult result) {
                            done.incrementAndGet();
                            permits.release();
                        }

                        @Override
                        public void onException(Throwable error) {
                            fail(error);
                        }
                    });
                }
            }
        } catch (Exception error) {
            fail(error);
        }
    }

    private String drain(String mode, String nameServer, String topic, int width, long count, String group)
            throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setInstanceName("load" + instances++);
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(width);
        if (mode.equals("pop")) {
            // 4.x has no such method.
            DefaultMQPushConsumer.class.getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
        }
        consumer.subscribe(topic, "*");
        CountDownLatch warm = new CountDownLatch(1);
        CountDownLatch end = new CountDownLatch(1);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            long seen = done.addAndGet(messages.size());
            if (seen >= count / 5) {
                warm.countDown();
            }
            if (seen >= count) {
                end.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        warm.await();
        Sample begin = new Sample();
        end.await();
        String told = begin.describe();
        consumer.shutdown();
        return told;
    }

    private static void fail(Throwable error) {
        error.printStackTrace();
        System.exit(1);
    }

    /** What was done and used up to a moment. */
    private final class Sample {
        private final long count = done.get();
        private final long nanos = System.nanoTime();
        private final double own = ownSeconds();
        private final double broker = brokerSeconds();

        String describe() {
            Sample end = new Sample();
            return String.format(
                    java.util.Locale.ROOT,
                    "{\"count\": %d, \"seconds\": %.4f, \"client_cpu_s\": %.4f, \"broker_cpu_s\": %.4f}",
                    end.count - count, (end.nanos - nanos) / 1e9, end.own - own, end.broker - broker);
        }

        private double ownSeconds() {
            return ((com.sun.management.OperatingSystemMXBean)
                            java.lang.management.ManagementFactory.getOperatingSystemMXBean())
                    .getProcessCpuTime() / 1e9;
        }

        private double brokerSeconds() {
            try {
                String stat = new String(
                        Files.readAllBytes(Paths.get("/proc/" + brokerPid + "/stat")), StandardCharsets.US_ASCII);
                String[] fields = stat.substring(stat.lastIndexOf(')') + 2).split(" ");
                return (Long.parseLong(fields[11]) + Long.parseLong(fields[12])) / 100.0;
            } catch (java.io.IOException error) {
                throw new java.io.UncheckedIOException(error);
            }
        }
    }
}
