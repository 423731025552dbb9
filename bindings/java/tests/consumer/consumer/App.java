package consumer;

import dev.kvevict.Context;
import dev.kvevict.DType;
import dev.kvevict.EvictReport;
import dev.kvevict.Geometry;
import dev.kvevict.Operation;
import dev.kvevict.Plan;
import dev.kvevict.Plane;
import dev.kvevict.Policy;
import dev.kvevict.Sequence;
import dev.kvevict.View;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.List;

/** Evicts a small cache. */
public final class App {
  private App() {}

  /**
   * Runs.
   *
   * @param args none
   */
  public static void main(String[] args) {
    Geometry model =
        Geometry.builder().layers(1).queryHeads(1).kvHeads(1).headDim(4).maxTokens(64).build();
    ByteBuffer keys = ByteBuffer.allocateDirect(64 * 16).order(ByteOrder.nativeOrder());
    ByteBuffer values = ByteBuffer.allocateDirect(64 * 16).order(ByteOrder.nativeOrder());
    try (Context context = Context.create();
        Plan plan = context.newPlan(model, Policy.parse("streaming-llm:budget=16"));
        Sequence sequence = plan.newSequence();
        View view =
            View.of(
                1,
                Plane.of(keys, DType.F32, 4, 16, 16),
                Plane.of(values, DType.F32, 4, 16, 16))) {
      sequence.append(64);
      EvictReport report =
          sequence.evict(List.of(view), plan.workspace(Operation.EVICT).allocate());
      System.out.println(report + " in " + App.class.getModule());
      if (report.tokensAfter() != 16) {
        throw new AssertionError(report);
      }
    }
  }
}
