import java.nio.charset.StandardCharsets;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/** Arguments: name server, topic, messages per second, warm-up and measured seconds. */
public final class Latency {
    public static void main(String[] arguments) throws Exception {
        int rate = Integer.parseInt(arguments[2]);
        int warmUp = rate * Integer.parseInt(arguments[3]);
        int count = warmUp + rate * Integer.parseInt(arguments[4]);
        List<Long> latencies = new CopyOnWriteArrayList<>();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("GID_latency_java");
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(arguments[1], "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            long now = System.nanoTime();
            String[] words = new String(messages.get(0).getBody(), StandardCharsets.UTF_8).split(" ");
            if (Integer.parseInt(words[0]) >= warmUp) {
                latencies.add(now - Long.parseLong(words[1]));
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        DefaultMQProducer producer = new DefaultMQProducer("GID_latency_java_producer");
        producer.setNamesrvAddr(arguments[0]);
        producer.start();
        Thread.sleep(3_000);
        long begin = System.nanoTime();
        for (int n = 0; n < count; n++) {
            LockSupport.parkNanos(begin + n * 1_000_000_000L / rate - System.nanoTime());
            String body = n + " " + System.nanoTime();
            producer.send(new Message(arguments[1], body.getBytes(StandardCharsets.UTF_8)));
        }
        for (int i = 0; i < 500 && latencies.size() < count - warmUp; i++) {
            Thread.sleep(10);
        }
        Long[] sorted = latencies.toArray(new Long[0]);
        java.util.Arrays.sort(sorted, Collections.reverseOrder());
        StringBuilder line = new StringBuilder("latencies");
        for (Long latency : sorted) {
            line.append(' ').append(latency);
        }
        System.out.println(line);
        System.exit(0);
    }
}
