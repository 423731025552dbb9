namespace KvEvict;

/// <summary>
/// Adds up the queries that it is shown, over any number of texts, and tells what policies that expect queries to come
/// want: <see cref="KvSignalInputs.QueryCenters"/> and <see cref="KvSignalInputs.QueryMean"/>. It is made once per
/// model. One thread at a time may use it.
/// </summary>
public sealed unsafe class KvCalibration : IDisposable
{
    private readonly KvPlan _plan;
    private readonly CalibrationHandle _handle;

    /// <summary>Makes a calibration that has seen no query.</summary>
    /// <param name="plan">A plan of the model, with any policy.</param>
    /// <param name="hasCovariances">
    /// Whether it also adds up what a covariance needs: for each query head KeyHeadDim * (KeyHeadDim + 1) / 2 numbers
    /// of 8 bytes.
    /// </param>
    /// <exception cref="KvEvictException">There is no memory left.</exception>
    public KvCalibration(KvPlan plan, bool hasCovariances = true)
    {
        ArgumentNullException.ThrowIfNull(plan);
        _plan = plan;
        _handle = new CalibrationHandle(plan.Handle);
        try
        {
            Native.kvevict_calibration_create(plan.Handle, hasCovariances ? 1u : 0u, _handle);
        }
        catch
        {
            _handle.Dispose();
            throw;
        }
    }

    private CalibrationHandle Handle => Check.Open(_handle, this);

    /// <summary>
    /// Adds query rows of a layer. It makes no difference how they are cut into calls. On CUDA it waits.
    /// </summary>
    /// <param name="layer">Below the number of layers, with a full cache.</param>
    /// <param name="queries">[query heads, rows, key dim] after RoPE, as floats or the geometry's type.</param>
    /// <param name="rowCount">Rows; 0 adds nothing.</param>
    /// <param name="firstPosition">The position of row 0; the others follow.</param>
    /// <param name="stream">CUstream on which the work is queued.</param>
    /// <exception cref="ArgumentException">
    /// Rows lie outside their memory or hold NaN or infinity, the plane does not match the geometry, or there is no
    /// such layer. Nothing is added.
    /// </exception>
    public void Observe(int layer, KvPlane queries, int rowCount, int firstPosition, nint stream = 0)
    {
        CalibrationHandle handle = Handle;
        queries.CheckRows(nameof(queries), rowCount, Shape(layer).QueryHeads);
        kvevict_plane native = queries.ToNative(_plan.Context, nameof(queries));
        Native.kvevict_calibration_observe(
            handle, Check.Count(layer, nameof(layer)), &native, Check.Count(firstPosition, nameof(firstPosition)),
            Check.Count(rowCount, nameof(rowCount)), stream);
        GC.KeepAlive(queries.Region.Owner);
    }

    /// <summary>Tells how many rows of a layer have been added.</summary>
    /// <param name="layer">Below the number of layers, with a full cache.</param>
    /// <returns>Rows.</returns>
    /// <exception cref="ArgumentException">There is no such layer.</exception>
    public long RowCount(int layer)
    {
        ulong count;
        Native.kvevict_calibration_rows(Handle, Check.Count(layer, nameof(layer)), &count);
        return (long)count;
    }

    /// <summary>What triattention takes as <see cref="KvSignalInputs.QueryCenters"/>.</summary>
    /// <param name="layer">A layer of which rows have been added.</param>
    /// <returns>[query heads, 3, pairs of RoPE].</returns>
    /// <exception cref="ArgumentException">There are no rows, no such layer, or no RoPE in the geometry.</exception>
    public float[] QueryCenters(int layer)
    {
        var centers = new float[Shape(layer).QueryHeads * 3 * _plan.Geometry.RopeInverseFrequencies.Length];
        float nothing;
        fixed (float* at = centers)
        {
            Native.kvevict_calibration_query_centers(
                Handle, Check.Count(layer, nameof(layer)), at == null ? &nothing : at, (nuint)centers.Length);
        }
        return centers;
    }

    /// <summary>
    /// What expected-attention takes as <see cref="KvSignalInputs.QueryMean"/> and, where wanted, as
    /// <see cref="KvSignalInputs.QueryCovariance"/>.
    /// </summary>
    /// <param name="layer">A layer of which rows have been added.</param>
    /// <param name="firstPosition">The first position to come.</param>
    /// <param name="positionCount">How many positions count, at most 65,536; the paper has 512.</param>
    /// <param name="withCovariance">Whether the covariance is wanted.</param>
    /// <returns>[query heads, key dim], and [query heads, key dim, key dim] or nothing.</returns>
    /// <exception cref="ArgumentException">
    /// There are no rows or no such layer, or a covariance is wanted of a calibration without any.
    /// </exception>
    public (float[] Mean, float[] Covariance) QueryMean(int layer, int firstPosition, int positionCount = 512,
                                                        bool withCovariance = false)
    {
        KvLayerGeometry shape = Shape(layer);
        var mean = new float[shape.QueryHeads * shape.KeyHeadDim];
        var covariance = new float[withCovariance ? mean.Length * shape.KeyHeadDim : 0];
        float nothing;
        fixed (float* toMean = mean)
        fixed (float* toCovariance = covariance)
        {
            Native.kvevict_calibration_query_mean(
                Handle, Check.Count(layer, nameof(layer)), Check.Count(firstPosition, nameof(firstPosition)),
                Check.Count(positionCount, nameof(positionCount)), toMean == null ? &nothing : toMean,
                (nuint)mean.Length, toCovariance, (nuint)covariance.Length);
        }
        return (mean, covariance);
    }

    /// <summary>The sums as bytes, with a version and a CRC-32 among them, for any machine.</summary>
    /// <returns>The bytes.</returns>
    public byte[] Save()
    {
        CalibrationHandle handle = Handle;
        nuint length;
        Native.kvevict_calibration_save(handle, null, 0, &length);
        byte[] data = new byte[checked((int)length)];
        fixed (byte* bytes = data)
            Native.kvevict_calibration_save(handle, bytes, length, null);
        return data;
    }

    /// <summary>
    /// Adds the sums that <see cref="Save"/> returned: in a new calibration that restores them, in another one it joins
    /// two parts of a corpus.
    /// </summary>
    /// <param name="data">The bytes.</param>
    /// <exception cref="ArgumentException">
    /// The bytes are damaged, or of a model with other layers, heads or RoPE. Nothing is added.
    /// </exception>
    public void Load(ReadOnlySpan<byte> data)
    {
        byte nothing;
        fixed (byte* bytes = data)
            Native.kvevict_calibration_load(Handle, bytes == null ? &nothing : bytes, (nuint)data.Length);
    }

    /// <summary>Frees the sums.</summary>
    public void Dispose() => _handle.Dispose();

    // One without heads where the library will refuse the layer.
    private KvLayerGeometry Shape(int layer)
    {
        KvGeometry geometry = _plan.Geometry;
        if (layer < 0 || layer >= geometry.LayerCount) return KvLayerGeometry.None;
        KvLayerGeometry shape = geometry.Layers[layer < geometry.Layers.Count ? layer : 0];
        return shape.HasFullCache ? shape : KvLayerGeometry.None;
    }
}
