package tour;

import java.time.Duration;
import org.apache.pulsar.client.api.v5.PulsarClient;
import org.apache.pulsar.client.api.v5.config.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.v5.schema.Schema;

/** Sends ten orders of three customers and reads them again, those of each customer in their order. */
public final class Tour {
    private static final String TOPIC = "topic://public/default/orders";
    private static final String[] CUSTOMERS = {"anna", "ben", "carla"};
    private static final int ORDERS = 10;

    public static void main(String[] arguments) throws Exception {
        String url = System.getenv().getOrDefault("VELA_SERVICE_URL", "pulsar://127.0.0.1:6650");
        try (PulsarClient client = PulsarClient.builder().serviceUrl(url).build();
                // A consumer keeps its segments for a minute after it has gone. Under the same name it gets them back at once.
                var consumer = client.newStreamConsumer(Schema.string()).topic(TOPIC).subscriptionName("java-tour")
                        .consumerName("tour").subscriptionInitialPosition(SubscriptionInitialPosition.LATEST).subscribe();
                var producer = client.newProducer(Schema.string()).topic(TOPIC).create()) {
            for (int number = 0; number < ORDERS; number++) {
                String customer = CUSTOMERS[number % CUSTOMERS.length];
                producer.newMessage().key(customer).value("order " + number).send();
            }
            for (int received = 0; received < ORDERS; received++) {
                var message = consumer.receive(Duration.ofSeconds(10));
                if (message == null) {
                    throw new IllegalStateException("only " + received + " orders came back");
                }
                System.out.println(message.key().orElse("") + ": " + message.value());
                consumer.acknowledgeCumulative(message.id());
            }
        }
    }
}
