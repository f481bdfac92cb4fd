import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collections;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentSkipListSet;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

/** Sends ten messages to T, and prints what a simple and a push consumer get of them. */
public final class GrpcPeer {
    private static final int COUNT = 10;

    public static void main(String[] arguments) throws Exception {
        ClientServiceProvider provider = ClientServiceProvider.loadService();
        ClientConfiguration configuration = ClientConfiguration.newBuilder()
            .setEndpoints(arguments[0]).enableSsl(false).build();
        Map<String, FilterExpression> all =
            Collections.singletonMap("T", FilterExpression.SUB_ALL);
        Set<String> pushed = new ConcurrentSkipListSet<>();
        PushConsumer push = provider.newPushConsumerBuilder()
            .setClientConfiguration(configuration).setConsumerGroup("GID_java_push")
            .setSubscriptionExpressions(all)
            .setMessageListener(message -> {
                pushed.add(text(message));
                return ConsumeResult.SUCCESS;
            }).build();
        Producer producer = provider.newProducerBuilder()
            .setClientConfiguration(configuration).setTopics("T").build();
        for (int number = 0; number < COUNT; number++) {
            byte[] body = ("java " + number).getBytes(StandardCharsets.UTF_8);
            producer.send(provider.newMessageBuilder().setTopic("T").setBody(body).build());
        }
        SimpleConsumer simple = provider.newSimpleConsumerBuilder()
            .setClientConfiguration(configuration).setConsumerGroup("GID_java_simple")
            .setAwaitDuration(Duration.ofSeconds(5)).setSubscriptionExpressions(all).build();
        Set<String> received = new TreeSet<>();
        long end = System.currentTimeMillis() + 60_000;
        while (received.size() < COUNT && System.currentTimeMillis() < end) {
            for (MessageView message : simple.receive(16, Duration.ofSeconds(15))) {
                received.add(text(message));
                simple.ack(message);
            }
        }
        while (pushed.size() < COUNT && System.currentTimeMillis() < end) {
            Thread.sleep(100);
        }
        System.out.println("simple " + received.size() + " push " + pushed.size());
        simple.close();
        push.close();
        producer.close();
        System.exit(0);
    }

    private static String text(MessageView message) {
        ByteBuffer body = message.getBody();
        byte[] bytes = new byte[body.remaining()];
        body.get(bytes);
        return new String(bytes, StandardCharsets.UTF_8);
    }
}
