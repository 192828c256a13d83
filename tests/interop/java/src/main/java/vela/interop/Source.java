package vela.interop;

import java.time.Duration;
import org.apache.pulsar.client.api.v5.CheckpointConsumer;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.PulsarClientException;
import org.apache.pulsar.client.api.v5.QueueConsumer;
import org.apache.pulsar.client.api.v5.StreamConsumer;

/** What the three kinds of consumers have in common: messages come out, and each is settled in the way of its kind. */
interface Source extends AutoCloseable {
    /** The next message, or null if there was none in time. */
    Message<?> receive(Duration limit) throws PulsarClientException;

    void acknowledge(Message<?> message);

    default void reject(Message<?> message) {
        throw new UnsupportedOperationException("only queue consumers reject messages");
    }

    default byte[] checkpoint() {
        throw new UnsupportedOperationException("only checkpoint consumers have checkpoints");
    }

    record Queue(QueueConsumer<?> consumer) implements Source {
        @Override
        public Message<?> receive(Duration limit) throws PulsarClientException {
            return consumer.receive(limit);
        }

        @Override
        public void acknowledge(Message<?> message) {
            consumer.acknowledge(message.id());
        }

        @Override
        public void reject(Message<?> message) {
            consumer.negativeAcknowledge(message.id());
        }

        @Override
        public void close() throws PulsarClientException {
            consumer.close();
        }
    }

    record Stream(StreamConsumer<?> consumer) implements Source {
        @Override
        public Message<?> receive(Duration limit) throws PulsarClientException {
            return consumer.receive(limit);
        }

        @Override
        public void acknowledge(Message<?> message) {
            consumer.acknowledgeCumulative(message.id());
        }

        @Override
        public void close() throws PulsarClientException {
            consumer.close();
        }
    }

    record Checkpoints(CheckpointConsumer<?> consumer) implements Source {
        @Override
        public Message<?> receive(Duration limit) throws PulsarClientException {
            return consumer.receive(limit);
        }

        @Override
        public void acknowledge(Message<?> message) {
            // Its position is what the application keeps.
        }

        @Override
        public byte[] checkpoint() {
            return consumer.checkpoint().toByteArray();
        }

        @Override
        public void close() throws PulsarClientException {
            consumer.close();
        }
    }
}
