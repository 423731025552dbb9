[assembly: System.Runtime.CompilerServices.DisableRuntimeMarshalling]
